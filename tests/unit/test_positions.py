"""Treatments of positions: against naive references, with every kind of scale, in parts, over padding."""

import dataclasses
import math

import pytest
import torch

from attnscale.attention import Attention, Context, base, make_variant
from attnscale.attention.attention_o import AttentionO
from attnscale.attention.base import ROTARY, Positions
from attnscale.attention.positions import (
    POSITIONS,
    BandPositions,
    ClippedPositions,
    NtkPositions,
    check_together,
    make_positions,
)
from attnscale.errors import UserError
from tests.unit.test_model import VOCABULARY, logits_of, make_encoder, random_ids, randomise

TRAINING_LENGTH = 16
THETA = 10000.0
HEADS, SIZE = 2, 8
TREATMENTS = [ROTARY, BandPositions(), BandPositions(width=5), ClippedPositions(), ClippedPositions(width=5)]
TREATMENTS += [NtkPositions()]
ATTENTIONS = {
    "attention_o": {}, "attention_e": {"base": "training_length"}, "sqrt_log_n": {}, "ssmax": {}, "log_position": {},
}  # fmt: skip


def named(positions: Positions) -> str:
    return f"{positions.name}{getattr(positions, 'width', '') or ''}"


def vectors(length, rows=2, seed=0):
    """Queries, keys and values that know nothing of their positions."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, HEADS, length, SIZE, generator=generator) for _ in range(3)]


def contexts(variant, positions, length):
    """What the encoder gives to `angles`, and what it gives to the other methods."""
    real = Context(
        n_B=torch.tensor([float(length)], dtype=torch.float64), key_mask_BM=None,
        positions_N=torch.arange(length, dtype=torch.float64), training_length=TRAINING_LENGTH, heads=HEADS,
        head_size=SIZE, rope_theta=THETA, positions=positions,
        learned=variant.learned(heads=HEADS, training_length=TRAINING_LENGTH),
    )  # fmt: skip
    return real, dataclasses.replace(real, n_B=positions.attended(real.n_B, TRAINING_LENGTH))


def turned(x, angles):
    turns = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(torch.view_as_complex(x.double().unflatten(-1, (-1, 2))) * turns).flatten(-2).to(x.dtype)


def rotated(variant, positions, length, q, k):
    """Queries with rotation and factor, keys with rotation, as the encoder makes them, and their context."""
    real, context = contexts(variant, positions, length)
    angles = variant.angles(real, THETA)
    return turned(q, angles) * variant.factor(context).to(q.dtype).item(), turned(k, angles), context


def reference(variant, positions, length, q, k, v):
    """The definition, pair by pair in float64: distance, what is seen, n and base of each treatment."""
    width = getattr(positions, "width", 0) or TRAINING_LENGTH
    distance = torch.arange(length)[None, :] - torch.arange(length)[:, None]  # of the key from the query
    seen, n, theta = torch.ones(length, length, dtype=torch.bool), float(length), THETA
    if isinstance(positions, BandPositions):
        seen, n = distance.abs() < width, float(min(length, 2 * width - 1))
    elif isinstance(positions, ClippedPositions):
        distance = distance.clamp(1 - width, width - 1)
    elif isinstance(positions, NtkPositions):
        theta *= max(1.0, length / TRAINING_LENGTH) ** (SIZE / (SIZE - 2))
    scale = {
        "attention_o": 1.0,
        "attention_e": math.log(n) / math.log(TRAINING_LENGTH),
        "ssmax": math.log(n) / math.log(TRAINING_LENGTH),
        "sqrt_log_n": math.sqrt(math.log(n) / math.log(TRAINING_LENGTH)),
        "log_position": (torch.arange(1, length + 1).double().log() / math.log(TRAINING_LENGTH)).clamp(min=1)[:, None],
    }[variant.name]
    q_, k_ = (torch.view_as_complex(x.double().unflatten(-1, (-1, 2))) for x in (q, k))
    turns = torch.polar(
        torch.ones(length, length, SIZE // 2, dtype=torch.float64),
        -distance[:, :, None].double() * theta ** (-torch.arange(0, SIZE, 2).double() / SIZE),
    )
    scores = torch.einsum("bhnp,bhmp,nmp->bhnm", q_, k_.conj(), turns).real * scale / math.sqrt(SIZE)
    return torch.softmax(scores.masked_fill(~seen, -math.inf), dim=-1) @ v.double()


@pytest.mark.parametrize("length", [7, 16, 17, 150], ids=lambda length: f"n{length}")
@pytest.mark.parametrize("positions", TREATMENTS, ids=named)
@pytest.mark.parametrize("attention", list(ATTENTIONS))
def test_every_treatment_under_every_scale_agrees_with_a_naive_float64_reference(attention, positions, length):
    variant = make_variant(attention, ATTENTIONS[attention])
    q, k, v = vectors(length)
    turned_q, turned_k, context = rotated(variant, positions, length, q, k)
    ours = variant.mix(turned_q, turned_k, v, context, 0.0)
    torch.testing.assert_close(ours.double(), reference(variant, positions, length, q, k, v), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("positions", [BandPositions(), ClippedPositions(), NtkPositions()], ids=named)
@pytest.mark.parametrize("attention", ["attention_o", "attention_e"])
def test_nothing_changes_up_to_the_training_length(attention, positions):
    treated, plain = randomise(make_encoder(attention, positions=positions)), make_encoder(attention)
    plain.load_state_dict(treated.state_dict())
    for length in (5, 15, 16):
        ids_BN = random_ids(3, length)
        assert torch.equal(logits_of(treated, ids_BN), logits_of(plain, ids_BN))
    ids_BN = random_ids(3, 40)
    assert not torch.allclose(logits_of(treated, ids_BN), logits_of(plain, ids_BN), atol=1e-3)


@pytest.mark.parametrize("length", [40, 150], ids=["explicit kernel", "fused kernel"])
def test_a_band_never_attends_to_a_distance_of_its_width_or_more(length):
    variant, positions = make_variant("attention_o", {}), BandPositions(width=5)
    q, k, v = vectors(length)
    at = 20
    for offset in (-6, -5, -4, 4, 5, 6):
        turned_q, turned_k, context = rotated(variant, positions, length, q, k)
        before = variant.mix(turned_q, turned_k, v, context, 0.0)[:, :, at]
        other_k, other_v = turned_k.clone(), v.clone()
        other_k[:, :, at + offset] = 3.0
        other_v[:, :, at + offset] = 100.0
        after = variant.mix(turned_q, other_k, other_v, context, 0.0)[:, :, at]
        assert torch.equal(before, after) == (abs(offset) >= 5)


def test_ntk_stretches_the_base_so_that_the_slowest_pair_turns_no_further_than_in_training():
    real, _ = contexts(AttentionO(), NtkPositions(), 4 * TRAINING_LENGTH)
    angles_BNP = NtkPositions().angles(real, THETA)
    assert angles_BNP.shape == (1, 64, SIZE // 2)
    plain_NP = ROTARY.angles(real, THETA)
    by_hand = torch.outer(real.positions_N, (THETA * 4 ** (8 / 6)) ** (-torch.arange(0, 8, 2).double() / 8))
    torch.testing.assert_close(angles_BNP[0], by_hand, rtol=1e-12, atol=0)
    torch.testing.assert_close(angles_BNP[0, :, -1], plain_NP[:, -1] / 4, rtol=1e-12, atol=0)
    assert torch.equal(angles_BNP[0, :, 0], plain_NP[:, 0])
    one_pair = dataclasses.replace(real, head_size=2)
    assert torch.equal(NtkPositions().angles(one_pair, THETA)[0], ROTARY.angles(one_pair, THETA))


@pytest.mark.parametrize("padded_length", [40, 200], ids=["explicit kernel", "fused kernel"])
@pytest.mark.parametrize("real", [12, 29], ids=["short", "long"])
@pytest.mark.parametrize("attention", ["attention_e", "log_position"])
@pytest.mark.parametrize("positions", TREATMENTS, ids=named)
def test_padding_and_other_rows_leave_the_logits_unchanged(positions, attention, real, padded_length):
    encoder = randomise(make_encoder(attention, positions=positions))
    short = random_ids(1, real)
    padded = random_ids(3, padded_length, seed=5)
    padded[1, :real] = short[0]
    mask = torch.ones_like(padded, dtype=torch.bool)
    mask[1, real:] = False
    mask[2, 3:] = False
    with torch.no_grad():
        within = encoder(padded, key_mask_BN=mask).view(3, padded_length, VOCABULARY)
    torch.testing.assert_close(within[1, :real], logits_of(encoder, short), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(within[2, :3], logits_of(encoder, padded[2:, :3]), atol=1e-4, rtol=1e-5)


@dataclasses.dataclass(frozen=True)
class MaskAndBias(AttentionO):
    """Hides every third key from later queries and prefers near keys, differently in each head."""

    def mask(self, context):
        at = context.positions_N
        return (at[None, :] % 3 != 0) | (at[None, :] >= at[:, None])

    def bias(self, context):
        at = context.positions_N
        slopes_H11 = torch.tensor([0.1, 0.3])[:, None, None]
        return -(at[:, None] - at[None, :]).abs() * slopes_H11


@pytest.mark.parametrize("positions", [ClippedPositions(), ClippedPositions(width=5)], ids=named)
@pytest.mark.parametrize("variant", [AttentionO(), make_variant("log_position", {}), MaskAndBias()], ids=str)
def test_a_row_read_in_parts_gives_what_it_gives_whole(variant, positions, monkeypatch):
    length = 50
    q, k, v = vectors(length)
    turned_q, turned_k, context = rotated(variant, positions, length, q, k)
    key_mask_BM = torch.arange(length) < torch.tensor([[length], [33]])
    context = dataclasses.replace(context, key_mask_BM=key_mask_BM)
    results = []
    for queries in (length, 7, 1):
        monkeypatch.setattr(base, "QUERIES_AT_ONCE", queries)
        results.append(variant.mix(turned_q, turned_k, v, context, 0.0))
    assert results[0].isfinite().all()
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("positions", TREATMENTS, ids=named)
@pytest.mark.parametrize("variant", [AttentionO(), make_variant("log_position", {}), MaskAndBias()], ids=str)
def test_logits_of_parts_are_those_that_the_mixing_takes_the_softmax_of(variant, positions):
    length = 50
    q, k, v = vectors(length)
    turned_q, turned_k, context = rotated(variant, positions, length, q, k)
    queries = variant.queries(turned_q, context)
    parts = [variant.logits(queries[:, :, first : first + 7], turned_k, context, first) for first in range(0, 50, 7)]
    mixed = torch.softmax(torch.cat(parts, dim=2), dim=-1) @ v
    torch.testing.assert_close(mixed, variant.mix(turned_q, turned_k, v, context, 0.0), atol=1e-5, rtol=1e-5)


def test_gradients_of_clipped_positions_are_those_of_the_reference():
    variant, positions, length = make_variant("attention_e", {"base": "training_length"}), ClippedPositions(), 40
    gradients = []
    for ours in (True, False):
        inputs = [x.requires_grad_() for x in vectors(length)]
        q, k, v = inputs
        if ours:
            turned_q, turned_k, context = rotated(variant, positions, length, q, k)
            mixed = variant.mix(turned_q, turned_k, v, context, 0.0)
        else:
            mixed = reference(variant, positions, length, q, k, v)
        weights = torch.randn(mixed.shape, generator=torch.Generator().manual_seed(7))
        gradients.append(torch.autograd.grad((mixed * weights).sum(), inputs))
    for mine, right in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, right, atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("positions", TREATMENTS, ids=named)
def test_every_treatment_computes_in_bf16_too(positions):
    encoder = randomise(make_encoder("attention_e", positions=positions))
    ids_BN = random_ids(2, 40)
    exact = logits_of(encoder, ids_BN)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = logits_of(encoder, ids_BN)
    assert rough.dtype == torch.bfloat16
    assert torch.corrcoef(torch.stack([rough.float().flatten(), exact.flatten()]))[0, 1] > 0.99


def test_names_and_parameters_are_those_of_the_configuration():
    assert list(POSITIONS) == ["band", "clipped", "ntk"]
    assert all(name == make_positions(name, {}).name and POSITIONS[name].source for name in POSITIONS)
    assert make_positions("band", {"width": 7}) == BandPositions(width=7)
    with pytest.raises(UserError, match=r"^unknown positions bnad; known: band, clipped, ntk$"):
        make_positions("bnad", {})
    with pytest.raises(UserError, match=r"^band has no parameter widht; it has width$"):
        make_positions("band", {"widht": 7})
    with pytest.raises(UserError, match=r"^ntk has no parameter width; it has none$"):
        make_positions("ntk", {"width": 7})


@pytest.mark.parametrize("name", ["band", "clipped"])
@pytest.mark.parametrize("width", [-1, 1, 17, 4.0, True, "wide"])
def test_a_width_that_training_has_not_seen_or_that_is_no_whole_number_is_refused(name, width):
    words = f"width of {name} must be a whole number from 2 to the training length 16, or 0 for that length, not "
    with pytest.raises(UserError, match=words):
        make_positions(name, {"width": width}).check(training_length=16)
    for right in (0, 2, 16):
        make_positions(name, {"width": right}).check(training_length=16)


@pytest.mark.parametrize(
    ("method", "refused"), [("angles", ["clipped", "ntk"]), ("mix", ["band", "clipped"]), ("factor", [])]
)
def test_a_variant_whose_own_method_would_bypass_a_treatment_cannot_have_it(method, refused):
    variant = type("Own", (AttentionO,), {"name": "own", method: getattr(Attention, method).__get__})()
    for name, kind in POSITIONS.items():
        if name in refused:
            with pytest.raises(UserError, match=f"^own has {method} of its own, which {name} would not reach; leave"):
                check_together(kind(), variant)
        else:
            check_together(kind(), variant)
