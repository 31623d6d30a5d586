"""The encoder: against Hugging Face's RoFormer, over padding, far positions, selections and initial weights."""

import dataclasses
import math

import pytest
import safetensors.torch
import torch
from transformers import RoFormerConfig, RoFormerForMaskedLM

from attnscale import model as module
from attnscale.attention import Attention, Context, make_variant, registered
from attnscale.attention.attention_o import AttentionO
from attnscale.attention.base import ROTARY
from attnscale.attention.positions import BandPositions
from attnscale.config import ModelConfig
from attnscale.huggingface import from_roformer
from attnscale.model import Encoder
from tests.unit.conftest import encoder_settings

VOCABULARY = 97


def make_encoder(attention="attention_o", recipe="fast", positions=ROTARY, n_limits=(0.0, math.inf), **parameters):
    config = ModelConfig.model_validate({"preset": "smoke", "recipe": recipe})
    variant = attention if isinstance(attention, Attention) else make_variant(attention, parameters)
    encoder = Encoder(config, VOCABULARY, variant, 16, positions, n_limits)
    encoder.initialise(seed=3)
    return encoder.eval()


def randomise(encoder, seed=0):
    """Larger random weights everywhere, biases included, so that nothing is hidden by zeros or small scores."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2 + (parameter == 1).float())
    return encoder


def random_ids(rows, length, seed=0):
    return torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def test_logits_equal_those_of_hugging_face_roformer():
    theirs_config = RoFormerConfig(
        vocab_size=VOCABULARY, embedding_size=64, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=128, hidden_act="gelu", max_position_embeddings=128, type_vocab_size=2,
        layer_norm_eps=1e-12, rotary_value=False, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = RoFormerForMaskedLM(theirs_config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in (p for p in theirs.parameters() if p.requires_grad):  # not the table of positions
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    ours = make_encoder(recipe="faithful")
    ours.load_state_dict(from_roformer(theirs.state_dict(), layers=2))
    ids_BN = random_ids(3, 100)
    with torch.no_grad():
        expected = theirs(input_ids=ids_BN).logits
        logits = ours(ids_BN).view(expected.shape)
    assert expected.abs().max() > 1
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
    # And with padding: the mask must mean the same on both sides.
    mask_BN = torch.ones_like(ids_BN, dtype=torch.bool)
    mask_BN[1, 70:] = False
    with torch.no_grad():
        expected = theirs(input_ids=ids_BN, attention_mask=mask_BN.long()).logits
        logits = ours(ids_BN, key_mask_BN=mask_BN).view(expected.shape)
    torch.testing.assert_close(logits[mask_BN], expected[mask_BN], atol=1e-4, rtol=0)


@pytest.mark.parametrize("recipe", ["fast", "faithful"])
@pytest.mark.parametrize("attention", list(registered()))
@pytest.mark.parametrize("padded_length", [40, 200], ids=["explicit kernel", "fused kernel"])
def test_padding_leaves_the_logits_unchanged(attention, recipe, padded_length):
    encoder = randomise(make_encoder(attention, recipe))
    short, real = random_ids(1, 29), 29
    padded = random_ids(3, padded_length, seed=5)
    padded[1, :real] = short[0]
    mask = torch.ones_like(padded, dtype=torch.bool)
    mask[1, real:] = False
    mask[2, 5:] = False
    with torch.no_grad():
        alone = encoder(short)
        within = encoder(padded, key_mask_BN=mask).view(3, padded_length, VOCABULARY)[1, :real]
    assert alone.abs().max() > 0.5
    torch.testing.assert_close(within, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("recipe", ["fast", "faithful"])
def test_selecting_tokens_gives_the_same_logits_as_computing_all(recipe):
    encoder = randomise(make_encoder(recipe=recipe))
    ids_BN = random_ids(4, 32)
    selected_S = torch.tensor([0, 5, 31, 32, 77, 127])
    with torch.no_grad():
        torch.testing.assert_close(encoder(ids_BN, selected_S), encoder(ids_BN)[selected_S])


def test_logits_do_not_depend_on_the_other_rows():
    encoder = randomise(make_encoder("attention_e"))
    ids_BN = random_ids(4, 32)
    with torch.no_grad():
        together = encoder(ids_BN).view(4, 32, -1)
        alone = encoder(ids_BN[2:3])
    torch.testing.assert_close(together[2], alone, atol=1e-5, rtol=1e-5)


def test_rotation_at_position_4096_agrees_with_float64():
    encoder = make_encoder()
    context = Context(
        n_B=torch.tensor([4097.0], dtype=torch.float64), key_mask_BM=None,
        positions_N=torch.arange(4097, dtype=torch.float64), training_length=64, heads=2, head_size=32,
    )  # fmt: skip
    rotation = encoder._rotation(encoder.variant.angles(context, 10000.0), encoder.variant.factor(context))
    pairs = torch.arange(16, dtype=torch.float64)
    exact = torch.polar(torch.ones(16, dtype=torch.float64), 4096 * 10000.0 ** (-2 * pairs / 32))
    assert (rotation[0, 4096, 1, 0].to(torch.complex128) - exact).abs().max() < 1e-5
    # The whole path: rotated queries and keys must give the score of their true distance.
    q, k = torch.randn(2, 32, generator=torch.Generator().manual_seed(0)).unbind()
    turn = lambda x, at: torch.view_as_complex(x.view(-1, 2)) * rotation[0, at, 1, 0]  # noqa: E731
    score = (turn(q, 4096) * turn(k, 4000).conj()).real.sum()
    q64, k64 = (torch.view_as_complex(x.double().view(-1, 2)) for x in (q, k))
    distance = torch.polar(torch.ones(16, dtype=torch.float64), 96 * 10000.0 ** (-2 * pairs / 32))
    assert abs(score.item() - (q64 * distance * k64.conj()).real.sum().item()) < 1e-4


def test_lengths_far_beyond_training_work():
    encoder = make_encoder("attention_e")
    with torch.no_grad():
        logits = encoder(random_ids(1, 4100), torch.tensor([0, 4099]))
    assert logits.isfinite().all()


def test_initial_weights_are_a_function_of_the_seed_and_shared_by_all_attentions():
    first, other = make_encoder("attention_o"), make_encoder("acl2022")
    for (name, ours), theirs in zip(first.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    other.initialise(seed=4)
    assert not torch.equal(first.embedding.weight, other.embedding.weight)
    assert abs(first.embedding.weight.std().item() - 0.02) < 0.001


def test_initial_weights_never_change_between_versions_and_machines():
    # Golden values: sums of raw Philox words times exactly rounded factors, so they hold on every machine.
    weights = make_encoder().embedding.weight[0, :3].tolist()
    assert weights == [pytest.approx(value, abs=0) for value in GOLDEN]


GOLDEN = [-0.011591796763241291, 0.04140289127826691, -0.019173583015799522]


@dataclasses.dataclass(frozen=True)
class Window(AttentionO):
    """A mask and a bias, to see that the core applies both on both kernels."""

    def mask(self, context):
        at = context.positions_N
        return (at[:, None] - at[None, :]).abs() <= 8

    def bias(self, context):
        at = context.positions_N
        return -(at[:, None] - at[None, :]).abs()[None, None] * 0.1


@pytest.mark.parametrize("length", [32, 160])
def test_mask_and_bias_of_a_variant_are_applied_by_both_kernels(length):
    variant = Window()
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, length, 32, generator=generator) for _ in range(3))
    context = Context(
        n_B=torch.tensor([float(length)], dtype=torch.float64), key_mask_BM=None,
        positions_N=torch.arange(length, dtype=torch.float64), training_length=64, heads=2, head_size=32,
    )  # fmt: skip
    logits = q.double() @ k.double().transpose(2, 3) + variant.bias(context)
    expected = torch.softmax(logits.masked_fill(~variant.mask(context), -torch.inf), -1) @ v.double()
    torch.testing.assert_close(variant.mix(q, k, v, context, 0.0).double(), expected, atol=1e-5, rtol=1e-5)


def logits_of(encoder, ids_BN):
    with torch.no_grad():
        return encoder(ids_BN)


@pytest.mark.parametrize("attention", list(registered()))
def test_saved_weights_give_the_same_logits_when_loaded(attention):
    saved, loaded = randomise(make_encoder(attention)), make_encoder(attention)
    ids_BN = random_ids(2, 40)
    before = logits_of(saved, ids_BN)
    assert not torch.equal(logits_of(loaded, ids_BN), before)
    loaded.load_state_dict(safetensors.torch.load(safetensors.torch.save(saved.state_dict())))
    assert torch.equal(logits_of(loaded, ids_BN), before)


def test_what_a_variant_learns_starts_where_it_says_in_every_layer_and_starts_there_again():
    encoder = make_encoder("ssmax")
    slopes = {name: value for name, value in encoder.named_parameters() if ".learned." in name}
    assert list(slopes) == [f"blocks.{layer}.attention.learned.slope" for layer in (0, 1)]
    start = torch.full((2,), 1 / math.log(16))
    assert all(torch.equal(slope, start) for slope in slopes.values())
    with torch.no_grad():
        slopes["blocks.0.attention.learned.slope"][1] = 3.0
    assert torch.equal(slopes["blocks.1.attention.learned.slope"], start)
    encoder.initialise(seed=3)
    assert all(torch.equal(slope, start) for slope in slopes.values())


def test_every_slope_of_ssmax_gets_gradients_and_changes_the_logits():
    encoder = randomise(make_encoder("ssmax"))
    ids_BN = random_ids(2, 40)
    encoder(ids_BN).square().sum().backward()
    before = logits_of(encoder, ids_BN)
    for name, slope in encoder.named_parameters():
        if ".learned." in name:
            assert (slope.grad != 0).all()
            for head in range(2):
                with torch.no_grad():
                    slope[head] += 1.0
                    assert not torch.allclose(logits_of(encoder, ids_BN), before)
                    slope[head] -= 1.0


@dataclasses.dataclass(frozen=True)
class Watching(AttentionO):
    """Notes which n its methods are given."""

    seen: list = dataclasses.field(default_factory=list)

    def factor(self, context):
        self.seen.append(("factor", context.n_B.tolist()))
        return super().factor(context)

    def angles(self, context, theta):
        self.seen.append(("angles", context.n_B.tolist()))
        return super().angles(context, theta)

    def queries(self, q_BHND, context):
        self.seen.append(("queries", context.n_B.tolist()))
        return q_BHND


@pytest.mark.parametrize(
    ("positions", "limits", "given"),
    [
        (ROTARY, (0.0, math.inf), [8, 16, 20, 31, 40]),
        (BandPositions(), (0.0, math.inf), [8, 16, 20, 31, 31]),
        (BandPositions(width=5), (0.0, math.inf), [8, 9, 9, 9, 9]),
        (ROTARY, (0.0, 16.0), [8, 16, 16, 16, 16]),
        (ROTARY, (16.0, math.inf), [16, 16, 20, 31, 40]),
        (ROTARY, (18.0, 18.0), [18, 18, 18, 18, 18]),
        (BandPositions(width=5), (16.0, math.inf), [16, 16, 16, 16, 16]),
    ],
)
def test_formulas_are_given_the_number_of_keys_that_are_attended_within_the_limits(positions, limits, given):
    variant = Watching()
    encoder = make_encoder(variant, positions=positions, n_limits=limits)
    real = [8, 16, 20, 31, 40]
    key_mask_BN = torch.arange(40) < torch.tensor(real)[:, None]
    with torch.no_grad():
        encoder(random_ids(5, 40), key_mask_BN=key_mask_BN)
    assert {method for method, _ in variant.seen} == {"factor", "angles", "queries"}
    for method, n_B in variant.seen:
        assert n_B == (real if method == "angles" else given)


@pytest.mark.parametrize("attention", ["attention_e", "sqrt_log_n", "infoscale", "yarn", "ssmax"])
def test_a_scale_frozen_at_the_training_length_is_that_of_attention_o_at_every_length(attention):
    parameters = {"base": "training_length"} if attention == "attention_e" else {}
    frozen = randomise(make_encoder(attention, n_limits=(16.0, 16.0), **parameters))
    plain = make_encoder()
    plain.load_state_dict({name: value for name, value in frozen.state_dict().items() if ".learned." not in name})
    with torch.no_grad():
        for name, value in frozen.named_parameters():
            if ".learned." in name:
                value.fill_(1 / math.log(16))
    for length in (4, 16, 40):
        ids_BN = random_ids(2, length)
        torch.testing.assert_close(logits_of(frozen, ids_BN), logits_of(plain, ids_BN), atol=1e-4, rtol=1e-5)
    if attention != "yarn":  # below the training length its formula is constant
        free = make_encoder(attention, **parameters)
        free.load_state_dict(frozen.state_dict())
        assert not torch.allclose(logits_of(free, random_ids(2, 4)), logits_of(plain, random_ids(2, 4)), atol=1e-3)


def test_the_clamp_of_bert4keras_changes_only_rows_below_16_keys():
    free = randomise(make_encoder("attention_e"))
    clamped = make_encoder("attention_e", n_limits=(16.0, math.inf))
    clamped.load_state_dict(free.state_dict())
    for length, same in ((4, False), (15, False), (16, True), (40, True)):
        ids_BN = random_ids(2, length)
        assert torch.equal(logits_of(clamped, ids_BN), logits_of(free, ids_BN)) == same
    context = clamped._context(random_ids(1, 4), None)
    n_B = context.n_B.clamp(*clamped.n_limits)
    assert clamped.variant.factor(dataclasses.replace(context, n_B=n_B)).item() == pytest.approx(
        math.log(16) / math.log(512) / math.sqrt(32)
    )


def test_an_encoder_is_built_as_its_settings_say():
    settings = encoder_settings(
        attention={"name": "attention_e", "parameters": {"base": 100}},
        positions={"name": "band", "parameters": {"width": 7}},
        n_at_least=16,
        model={"recipe": "faithful"},
    )
    encoder = module.make_encoder(settings, VOCABULARY)
    assert encoder.variant == make_variant("attention_e", {"base": 100})
    assert encoder.positions == BandPositions(width=7)
    assert encoder.n_limits == (16.0, math.inf)
    assert (encoder.training_length, encoder.config.recipe) == (16, "faithful")
    plain = module.make_encoder(encoder_settings(n_at_most=16), VOCABULARY)
    assert (plain.positions, plain.n_limits) == (ROTARY, (0.0, 16.0))


def test_padding_far_from_the_text_does_no_harm_where_a_variant_hides_keys():
    """Far padding sees no real key through the window; what comes of it may not reach the text in the next layer."""
    encoder = randomise(make_encoder(Window()))
    short = random_ids(1, 20)
    padded = torch.cat([short, random_ids(1, 80, seed=5)], dim=1)
    with torch.no_grad():
        within = encoder(padded, key_mask_BN=torch.arange(100)[None] < 20)[:20]
    torch.testing.assert_close(within, logits_of(encoder, short), atol=1e-4, rtol=1e-5)
