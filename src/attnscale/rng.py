"""Random numbers that are the same bits on every machine and with every NumPy release.

NumPy promises the raw 64-bit output of a bit generator for ever, but neither the streams of `Generator`
methods nor the last bits of log or cos, which a normal draw needs. So everything here is made from raw
Philox words with integer arithmetic and exactly rounded operations only. A stream is named by what it
is for and by numbers such as seed and step; there is no state to save, which is what makes a resumed run
equal to an uninterrupted one.
"""

import hashlib

import numpy as np
import numpy.typing as npt


class Stream:
    """A named sequence of random words.

    Args:
        purpose: what the numbers are for, such as "train masks".
        keys: numbers or words that tell this stream from others of its purpose, such as (seed, step).
    """

    def __init__(self, purpose: str, *keys: int | str) -> None:
        name = "\x1f".join([purpose, *(str(key) for key in keys)])
        digest = hashlib.sha256(name.encode("utf-8")).digest()
        self._words = np.random.Philox(key=np.frombuffer(digest[:16], dtype="<u8").astype(np.uint64))

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """`count` raw 64-bit words."""
        return np.asarray(self._words.random_raw(count), dtype=np.uint64)

    def uniforms(self, count: int) -> npt.NDArray[np.float64]:
        """`count` numbers in [0, 1), multiples of 2^-53."""
        return (self.words(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def integers(self, count: int, high: int) -> npt.NDArray[np.int64]:
        """`count` whole numbers in 0 … high-1 (bias below high·2^-53)."""
        return (self.uniforms(count) * high).astype(np.int64)

    def choose(self, population: int, count: int) -> npt.NDArray[np.int64]:
        """`count` different whole numbers of 0 … population-1, in random order."""
        return np.argsort(self.words(population), kind="stable")[:count].astype(np.int64)

    def normals(self, count: int) -> npt.NDArray[np.float32]:
        """`count` nearly normal numbers, mean 0, variance 1, none beyond ±6.

        The sum of twelve uniform 16-bit numbers (Irwin-Hall): whole-number sums, so the bits cannot
        depend on a machine's log or cos. Kurtosis is 2.9 instead of 3, of no weight for initial weights.
        """
        total = self.words(count * 3).view(np.uint16).reshape(count, 12).astype(np.int64).sum(axis=1)
        centred = (total - 6 * 65535).astype(np.float64)
        # The variance of one uniform on 0…65535 is (65536²-1)/12, so twelve of them have 65536²-1.
        return np.asarray(centred / np.sqrt(65536.0**2 - 1.0), dtype=np.float32)
