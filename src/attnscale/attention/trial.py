"""Trying an attention out on small examples, so that a mistake in it is found before anything is computed.

Tensor names end in their shape: B rows, H heads, N tokens of a row (queries), M = N keys, D size of a head, P = D/2.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from attnscale.attention.base import ROTARY, Attention, Context, Positions
from attnscale.errors import UserError

__all__ = ["initial_values", "told", "try_out"]

# Largest tensor that a trial makes: longer rows are tried as far as this reaches, for the check must stay quick.
ELEMENTS = 2**22


def try_out(
    variant: Attention,
    *,
    longest: int,
    training_length: int,
    heads: int = 2,
    head_size: int = 4,
    positions: Positions = ROTARY,
    trained: bool = True,
) -> None:
    """Use a variant on a few tokens, at the training length with one backward pass, and at the longest length.

    Args:
        variant: what is to be tried.
        longest: largest evaluation length in tokens.
        training_length: L in tokens.
        heads: H of the model.
        head_size: D of the model.
        positions: treatment of positions of the arm.
        trained: whether it is to be trained; with weights of another arm it may ignore what that one has learned.

    Raises:
        UserError: it refuses these lengths, raises, hides all keys from a token, learns what nothing uses, gives other
            numbers when asked twice, or returns a wrong shape or a number that is not finite.
    """
    try:
        variant.check(longest=longest, training_length=training_length)
        learned = initial_values(variant, heads=heads, training_length=training_length)
        plain = Context(
            n_B=torch.tensor([float(training_length), float(longest)], dtype=torch.float64),
            key_mask_BM=None,
            positions_N=torch.arange(8, dtype=torch.float64),
            training_length=training_length,
            heads=heads,
            head_size=head_size,
        )
        with _one_thread(), torch.no_grad():
            _pairs_of(variant, dataclasses.replace(plain, learned=learned), positions)
            _try_twice(variant, plain, learned)
            for length in (training_length, longest):
                _try_length(variant, plain, learned, length)
                _try_pairs(variant, plain, learned, length, positions)
            _try_training(variant, plain, learned, trained)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{variant.name} fails on a small example: {told(error)}") from error


def initial_values(variant: Attention, *, heads: int, training_length: int) -> Mapping[str, Tensor]:
    """What `variant.learned` returns, checked: vectors of finite numbers, the same whenever it is asked.

    Raises:
        UserError: it raises, or returns something else.
    """
    where = f"learned of {variant.name}"
    try:
        first, again = (variant.learned(heads=heads, training_length=training_length) for _ in range(2))
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{variant.name} fails on a small example: {told(error)}") from error
    if not _tensors_by_name(first) or not _tensors_by_name(again):
        raise UserError(f"{where} must return tensors by name, not {' '.join(f'{first}'.split())}")
    for name, value in first.items():
        if not (value.is_floating_point() and value.ndim == 1 and len(value)):
            kind = f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
            raise UserError(f"{where} must return vectors of floating-point numbers, but {name} is {kind}")
        try:
            nn.ParameterDict({name: nn.Parameter(value.detach().float())})
        except Exception:
            raise UserError(f"{where} returns a tensor called {name}, a name that torch needs; rename it") from None
        if not value.float().isfinite().all():
            raise UserError(f"{where} returns numbers that are not finite")
    if first.keys() != again.keys() or not all(torch.equal(first[name], again[name]) for name in first):
        raise UserError(
            f"{where} returns other values when asked twice, so no run could be repeated; give fixed initial values"
        )
    return {name: value.detach().float().clone() for name, value in first.items()}


def told(error: BaseException) -> str:
    """An exception in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Beside trainings that own the cores, threads would wait for each other much longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _tensors_by_name(learned: object) -> bool:
    return isinstance(learned, Mapping) and all(
        isinstance(name, str) and name.isidentifier() and isinstance(value, Tensor) for name, value in learned.items()
    )


def _try_twice(variant: Attention, plain: Context, learned: Mapping[str, Tensor]) -> None:
    """Rows of different n, a few tokens each: shapes, and the same numbers whenever it is asked."""
    context = dataclasses.replace(plain, learned=learned)
    q_BHND, k_BHND, v_BHND = _inputs(plain, rows=2)
    answers = []
    for _ in range(2):
        answers.append(
            {
                **_rotation_of(variant, plain),
                "queries": _checked(variant, "queries", variant.queries(q_BHND, context), [q_BHND.shape]),
                "mix": _checked(variant, "mix", variant.mix(q_BHND, k_BHND, v_BHND, context, 0.0), [q_BHND.shape]),
            }
        )
    for method, answer in answers[0].items():
        if not torch.equal(answer, answers[1][method]):
            raise UserError(
                f"{method} of {variant.name} returns other numbers when asked twice, so no run could be repeated; "
                "leave out what is random"
            )


def _try_length(variant: Attention, plain: Context, learned: Mapping[str, Tensor], length: int) -> None:
    """What is made for every token of full rows of a length."""
    tokens = min(length, ELEMENTS // (plain.heads * plain.head_size))
    context = _full_rows(plain, tokens, n=length)
    _rotation_of(variant, context)
    q_BHND = torch.ones(1, plain.heads, tokens, plain.head_size)
    queries = variant.queries(q_BHND, dataclasses.replace(context, learned=learned))
    _checked(variant, "queries", queries, [q_BHND.shape])


def _try_pairs(
    variant: Attention, plain: Context, learned: Mapping[str, Tensor], length: int, positions: Positions
) -> None:
    """What is made for every pair of tokens, of the whole length only where that is not too much."""
    tokens = min(length, math.isqrt(ELEMENTS // plain.heads))
    while tokens:
        context = dataclasses.replace(_full_rows(plain, tokens, n=length), learned=learned)
        shapes = _pairs_of(variant, context, positions)
        sizes = [math.prod(length if size == tokens else size for size in shape) for shape in shapes]
        tokens = length if tokens < length and shapes and max(length, *sizes) <= ELEMENTS else 0


def _pairs_of(variant: Attention, context: Context, positions: Positions) -> list[torch.Size]:
    """Check bias and mask, and that every token sees a key; the shapes of the two."""
    rows, tokens = len(context.n_B), len(context.positions_N)
    whole = torch.Size((rows, context.heads, tokens, tokens))
    bias, mask = variant.bias(context), variant.mask(context)
    for method, result in (("bias", bias), ("mask", mask)):
        if result is None:
            continue
        if not isinstance(result, Tensor) or not _broadcasts(result.shape, whole):
            raise UserError(
                f"{method} of {variant.name} must return a tensor that broadcasts to {tuple(whole)}, not "
                f"{_what(result)}"
            )
        if (result.dtype == torch.bool) != (method == "mask"):
            raise UserError(
                f"{method} of {variant.name} must hold {'true and false' if method == 'mask' else 'numbers'}, not "
                f"{str(result.dtype).removeprefix('torch.')}"
            )
    made = [result for result in (bias, mask) if result is not None]
    if made and (near := positions.mask(context)) is not None:
        mask = near if mask is None else mask & near
        made.append(near)
    if made:
        logits = torch.zeros(1) if bias is None else bias.float().reshape(bias.shape or (1,))
        highest = (logits if mask is None else torch.where(mask, logits, -math.inf)).amax(dim=-1)
        if highest.isnan().any() or highest.isposinf().any():
            raise UserError(f"bias of {variant.name} returns numbers that are not finite")
        if highest.isneginf().any():
            query = int(highest.isneginf().nonzero()[0][-1]) if highest.ndim else 0
            raise UserError(
                f"{variant.name} lets the token at position {query} of {tokens} see no key; change its mask or bias"
            )
    if type(variant).logits is not Attention.logits:
        q_BHnD, k_BHMD = torch.ones(rows, context.heads, 2, context.head_size), _inputs(context, rows)[1]
        logits = variant.logits(q_BHnD, k_BHMD, context, 0)
        if not isinstance(logits, Tensor) or logits.shape != (rows, context.heads, 2, tokens):
            raise UserError(
                f"logits of {variant.name} must return a tensor of shape {(rows, context.heads, 2, tokens)}, not "
                f"{_what(logits)}"
            )
    return [result.shape for result in made]


def _try_training(variant: Attention, plain: Context, learned: Mapping[str, Tensor], trained: bool) -> None:
    """One backward pass at the training length: what no gradient reaches, no optimizer can keep a state of."""
    length = plain.training_length
    tokens = min(length, math.isqrt(ELEMENTS // plain.heads))
    parameters = {name: nn.Parameter(value.clone()) for name, value in learned.items()}
    context = dataclasses.replace(_full_rows(plain, tokens, n=length), learned=parameters)
    q_BHND, k_BHND, v_BHND = (x.requires_grad_() for x in _inputs(context, rows=1))
    with torch.enable_grad():
        mixed = variant.mix(q_BHND, k_BHND, v_BHND, context, 0.0)
        _checked(variant, "mix", mixed.detach() if isinstance(mixed, Tensor) else mixed, [q_BHND.shape])
        if not trained:
            return
        if mixed.requires_grad:
            mixed.sum().backward()  # type: ignore[no-untyped-call]
    if q_BHND.grad is None and k_BHND.grad is None and v_BHND.grad is None:
        raise UserError(f"mix of {variant.name} lets no gradient through, so it cannot be trained; mend it")
    for name, parameter in parameters.items():
        if parameter.grad is None:
            raise UserError(
                f"learned of {variant.name} returns {name}, which no gradient reaches in training; use it in queries, "
                "bias or mix, or leave it out"
            )


def _full_rows(plain: Context, tokens: int, n: int) -> Context:
    return dataclasses.replace(
        plain,
        n_B=torch.tensor([float(n)], dtype=torch.float64),
        positions_N=torch.arange(tokens, dtype=torch.float64),
    )


def _inputs(context: Context, rows: int) -> list[Tensor]:
    """Queries, keys and values, (B, H, N, D); torch's own generator stays as it is."""
    generator = torch.Generator().manual_seed(0)
    shape = (rows, context.heads, len(context.positions_N), context.head_size)
    return [torch.randn(shape, generator=generator) for _ in range(3)]


def _rotation_of(variant: Attention, context: Context) -> dict[str, Tensor]:
    """Factor and angles, which the encoder asks for once for all layers and thus without what they learn."""
    rows, pairs = len(context.n_B), (len(context.positions_N), context.head_size // 2)
    factor, angles = variant.factor(context), variant.angles(context, context.rope_theta)
    return {
        "factor": _checked(variant, "factor", factor, [(rows,)]),
        "angles": _checked(variant, "angles", angles, [pairs, (rows, *pairs)]),
    }


def _checked(variant: Attention, method: str, result: object, shapes: list[tuple[int, ...]]) -> Tensor:
    if not isinstance(result, Tensor) or result.shape not in shapes:
        wanted = " or ".join(str(tuple(shape)) for shape in shapes)
        raise UserError(f"{method} of {variant.name} must return a tensor of shape {wanted}, not {_what(result)}")
    if not result.isfinite().all():
        raise UserError(f"{method} of {variant.name} returns numbers that are not finite")
    return result


def _what(result: object) -> str:
    return f"shape {tuple(result.shape)}" if isinstance(result, Tensor) else " ".join(repr(result).split())


def _broadcasts(shape: torch.Size, whole: torch.Size) -> bool:
    sizes = zip(reversed(shape), reversed(whole), strict=False)
    return len(shape) <= len(whole) and all(size in (1, wanted) for size, wanted in sizes)
