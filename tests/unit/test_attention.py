"""Every registered attention: formulas, a naive reference, gradients; a new file gets these tests for free."""

import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from attnscale import attention
from attnscale.attention import Attention, Context, make_variant, register, registered, source_file, try_out
from attnscale.attention.base import describe
from attnscale.config import parse_config
from attnscale.errors import UserError

# The factor on q·k for n keys, heads of size d, training length L and the query at position i.
FORMULAS = {
    "attention_o": lambda n, d, L, i: 1 / math.sqrt(d),
    "attention_e": lambda n, d, L, i: math.log(n) / math.log(512) / math.sqrt(d),
    "attention_e_kappa": lambda n, d, L, i: math.log(n) / d,
    "acl2022": lambda n, d, L, i: math.log(n) / math.sqrt(d),
    "sqrt_log_n": lambda n, d, L, i: math.sqrt(math.log(n) / math.log(L) / d),
    "infoscale": lambda n, d, L, i: math.sqrt((1 - n ** (-2 / d)) / (1 - L ** (-2 / d)) / d),
    "yarn": lambda n, d, L, i: (1 + 0.1 * math.log(max(1, n / L))) ** 2 / math.sqrt(d),
    "ssmax": lambda n, d, L, i: math.log(n) / math.log(L) / math.sqrt(d),
    "log_position": lambda n, d, L, i: max(1, math.log(i + 1) / math.log(L)) / math.sqrt(d),
}
CALIBRATED = {
    "attention_e": {"base": "training_length"}, "sqrt_log_n": {}, "infoscale": {}, "yarn": {}, "ssmax": {},
    "log_position": {},
}  # fmt: skip


def make_context(lengths, size=None, head_size=32, heads=2, training_length=64, variant=None):
    size = size or max(lengths)
    mask = torch.arange(size)[None, :] < torch.tensor(lengths)[:, None]
    learned = {} if variant is None else variant.learned(heads=heads, training_length=training_length)
    return Context(
        n_B=torch.tensor(lengths, dtype=torch.float64), key_mask_BM=mask,
        positions_N=torch.arange(size, dtype=torch.float64), training_length=training_length,
        heads=heads, head_size=head_size, learned=learned,
    )  # fmt: skip


def scale(name, parameters, lengths, **options):
    """What q·k is multiplied with, (B, N) float64, the same in all heads."""
    variant = make_variant(name, parameters)
    context = make_context(lengths, variant=variant, **options)
    factor = variant.factor(context)[:, None, None, None].expand(-1, 2, len(context.positions_N), 1)
    scale_BHN = variant.queries(factor, context)[..., 0]
    assert torch.equal(scale_BHN[:, 0], scale_BHN[:, 1])
    return scale_BHN[:, 0]


@pytest.mark.parametrize("d", [32, 64])
@pytest.mark.parametrize("name", list(FORMULAS))
def test_the_scale_equals_its_formula(name, d):
    lengths = [16, 64, 512, 1024]
    found = scale(name, {}, lengths, head_size=d)
    expected = [[FORMULAS[name](n, d, 64, i) for i in range(1024)] for n in lengths]
    # A learned slope is kept in single precision.
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize("d", [32, 64])
def test_attention_e_equals_attention_o_at_512(d):
    context = make_context([512], head_size=d)
    for other in (
        make_variant("attention_e", {}),
        make_variant("attention_e_kappa", {"kappa": math.sqrt(d) / math.log(512)}),
    ):
        torch.testing.assert_close(other.factor(context), make_variant("attention_o", {}).factor(context))


@pytest.mark.parametrize("length", [16, 64, 100])
@pytest.mark.parametrize("name", list(CALIBRATED))
def test_scales_relative_to_the_training_length_are_those_of_attention_o_there_and_differ_elsewhere(name, length):
    found = scale(name, CALIBRATED[name], [length], training_length=length)
    plain = scale("attention_o", {}, [length], training_length=length)
    torch.testing.assert_close(found, plain, rtol=1e-6, atol=0)
    longer = scale(name, CALIBRATED[name], [4 * length], training_length=length)
    assert longer[0, -1] > 1.05 * plain[0, 0]


@pytest.mark.parametrize(
    ("name", "multiplier"),
    [("attention_e", 1.667), ("sqrt_log_n", 1.291), ("infoscale", 1.264), ("yarn", 1.631), ("ssmax", 1.667)],
)
def test_multipliers_at_1024_after_training_at_64_are_those_calculated_by_hand(name, multiplier):
    found = scale(name, CALIBRATED[name], [1024], head_size=64)[0, 0].item() * 8
    assert found == pytest.approx(multiplier, abs=5e-4)


def test_the_logarithm_of_the_position_counts_from_one_and_never_lowers_the_scale():
    found = scale("log_position", {}, [100], training_length=16, head_size=64)[0] * 8
    assert torch.equal(found[:16], torch.ones(16, dtype=torch.float64))
    assert found[16].item() == pytest.approx(math.log(17) / math.log(16))
    assert found[99].item() == pytest.approx(math.log(100) / math.log(16))


def test_every_head_has_its_own_slope_of_ssmax():
    variant = make_variant("ssmax", {})
    learned = variant.learned(heads=3, training_length=64)
    assert learned["slope"].tolist() == pytest.approx([1 / math.log(64)] * 3)
    context = dataclasses.replace(make_context([10], heads=3), learned={"slope": torch.tensor([0.5, 1.0, -2.0])})
    queries = variant.queries(torch.ones(1, 3, 10, 4), context)
    assert queries[0, :, 0, 0].tolist() == [0.5, 1.0, -2.0]


def test_the_formulas_tested_here_are_those_of_registered_variants():
    assert set(FORMULAS) <= set(registered())


@pytest.mark.parametrize("name", list(registered()))
class TestEveryVariant:
    def test_agrees_with_a_naive_float64_reference(self, name):
        variant = make_variant(name, {})
        # Short training: both rows are beyond it, where formulas differ most.
        context = make_context([20, 13], head_size=8, training_length=6, variant=variant)
        generator = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(2, 2, 20, 8, generator=generator) for _ in range(3))
        factor = variant.factor(context)[:, None, None, None]
        ours = variant.mix(q * factor.float(), k, v, context, 0.0)
        scaled = variant.queries(q.double() * factor, context)
        for row, real in enumerate([20, 13]):
            for head in range(2):
                for query in range(real):
                    scores = [
                        sum(scaled[row, head, query, i].item() * k[row, head, key, i].item() for i in range(8))
                        for key in range(real)
                    ]
                    if (bias := variant.bias(context)) is not None:
                        scores = [
                            s + bias.expand(2, 2, 20, 20)[row, head, query, j].item() for j, s in enumerate(scores)
                        ]
                    if (mask := variant.mask(context)) is not None:
                        seen = mask.expand(2, 2, 20, 20)[row, head, query].tolist()
                        scores = [s if sees else -math.inf for s, sees in zip(scores, seen, strict=False)]
                    top = max(scores)
                    weights = [math.exp(score - top) for score in scores]
                    expected = sum(w * v[row, head, key].double() for key, w in enumerate(weights)) / sum(weights)
                    torch.testing.assert_close(ours[row, head, query].double(), expected, atol=1e-5, rtol=1e-5)

    def test_gradients_are_right(self, name):
        variant = make_variant(name, {})
        context = make_context([5, 3], head_size=4, training_length=4, variant=variant)
        generator = torch.Generator().manual_seed(0)
        inputs = [
            torch.randn(2, 2, 5, 4, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3)
        ]
        inputs += [value.double().requires_grad_() for value in context.learned.values()]
        factor = variant.factor(context)[:, None, None, None]

        def mixed(q, k, v, *learned):
            known = dataclasses.replace(context, learned=dict(zip(context.learned, learned, strict=True)))
            return variant.mix(q * factor, k, v, known, 0.0)

        assert torch.autograd.gradcheck(mixed, inputs)

    def test_has_formula_source_and_docstring(self, name):
        variant = registered()[name]
        assert all(describe(variant)[:3])
        assert variant.__doc__
        assert not variant.__doc__.startswith(variant.__name__ + "(")
        assert source_file(name).name == f"{name}.py"


def test_unknown_names_and_parameters_get_a_sentence():
    with pytest.raises(UserError, match=r"unknown attention atention_o; did you mean attention_o\?"):
        make_variant("atention_o", {})
    with pytest.raises(UserError, match="attention_e has no parameter bas; it has base"):
        make_variant("attention_e", {"bas": 3})
    for name in ("attention_e", "sqrt_log_n", "infoscale", "log_position"):
        for base in (1, 0, -2, "L", True):
            with pytest.raises(UserError, match=f"base of {name} must be"):
                make_variant(name, {"base": base}).check(longest=64, training_length=16)
    for slope in (-0.1, "steep", True):
        with pytest.raises(UserError, match="slope must be a number of at least 0"):
            make_variant("yarn", {"slope": slope}).check(longest=64, training_length=16)
    with pytest.raises(UserError, match="kappa must be a number above 0"):
        make_variant("attention_e_kappa", {"kappa": -1.0}).check(longest=64, training_length=16)


def test_a_name_cannot_be_taken_twice(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Impostor(registered()["attention_o"]):
        """Another class under a name that is taken."""

    with pytest.raises(UserError, match="registered twice"):
        register("attention_o")(Impostor)


def test_a_users_own_file_can_hold_a_variant(tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "_REGISTRY", dict(registered()))
    path = tmp_path / "my attention ñ.py"
    path.write_text(
        "import dataclasses, torch\n"
        "from attnscale.attention import Attention, register\n"
        "@register('my_own')\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class MyOwn(Attention):\n"
        "    '''Twice the usual factor.'''\n"
        "    formula = '2 / sqrt(d)'\n"
        "    source = 'a test'\n"
        "    def factor(self, context):\n"
        "        return 2 * super().factor(context)\n",
        encoding="utf-8",
    )
    factor = make_variant("my_own", {}, str(path)).factor(make_context([10], head_size=16))
    assert factor.item() == 0.5
    assert source_file("my_own", str(path)) == path
    with pytest.raises(UserError, match="is no Python file"):
        make_variant("other", {}, str(tmp_path / "none.py"))
    broken = tmp_path / "broken.py"
    broken.write_text("1/0")
    with pytest.raises(UserError, match="does not import: ZeroDivisionError"):
        make_variant("other", {}, str(broken))


BAD_VARIANTS = {
    "return None": "factor of bad must return a tensor of shape (2,), not None",
    "return torch.ones(3)": "factor of bad must return a tensor of shape (2,), not shape (3,)",
    "return super().factor(context) * float('nan')": "factor of bad returns numbers that are not finite",
    "return context.no_such_thing": "bad fails on a small example: AttributeError",
    "raise KeyError('x')": "bad fails on a small example: KeyError",
}


BAD_LEARNED = {
    "return None": "learned of bad must return tensors by name, not None",
    "return {'a': 1.0}": "learned of bad must return tensors by name, not {'a': 1.0}",
    "return {'a.b': torch.ones(heads)}": "learned of bad must return tensors by name, not {'a.b': ",
    "return {3: torch.ones(heads)}": "learned of bad must return tensors by name, not {3: ",
    "return {'a': torch.full((heads,), torch.nan)}": "learned of bad returns numbers that are not finite",
    "return {'a': torch.full((heads,), 1e300, dtype=torch.float64)}": "learned of bad returns numbers that are not fin",
    "return {'a': torch.ones(0 // 0)}": "bad fails on a small example: ZeroDivisionError",
    "return {'keys': torch.ones(heads)}": "learned of bad returns a tensor called keys, a name that torch needs",
    "return {'a': torch.tensor(1.0)}": "learned of bad must return vectors of floating-point numbers, but a is",
    "return {'a': torch.ones(heads, 3)}": "learned of bad must return vectors of floating-point numbers, but a is",
    "return {'a': torch.ones(0)}": "learned of bad must return vectors of floating-point numbers, but a is",
    "return {'a': torch.ones(heads).int()}": "learned of bad must return vectors of floating-point numbers, but a is",
    "return {'a': torch.rand(heads)}": "learned of bad returns other values when asked twice",
    "return {'a': torch.ones(heads)}": "learned of bad returns a, which no gradient reaches in training",
}
FACTOR, LEARNED = "factor(self, context)", "learned(self, *, heads, training_length)"
QUERIES, BIAS, MASK = "queries(self, q, context)", "bias(self, context)", "mask(self, context)"
ANGLES, MIX = "angles(self, context, theta)", "mix(self, q, k, v, context, dropout)"
# Model of 4 heads of 64, training length 64, longest evaluation 2048.
MORE_BAD = [
    (FACTOR, "return super().factor(context) * torch.rand(1)", "factor of bad returns other numbers when asked twice"),
    (FACTOR, "return torch.log(2048.0 - context.n_B)", "factor of bad returns numbers that are not finite"),
    # The factor is the same in all layers, so what a layer learns is not there yet.
    (FACTOR, "return context.learned['a']", "bad fails on a small example: KeyError: 'a'"),
    (QUERIES, "return q * torch.rand(1)", "queries of bad returns other numbers when asked twice"),
    (
        QUERIES,
        "return q[..., :2]",
        "queries of bad must return a tensor of shape (2, 4, 8, 64), not shape (2, 4, 8, 2)",
    ),
    (QUERIES, "return q * torch.ones(2)[:, None, None]", "bad fails on a small example: RuntimeError: "),
    (QUERIES, "return q * torch.ones(64)[: q.shape[2], None]", "bad fails on a small example: RuntimeError: "),
    (QUERIES, "return q if q.shape[2] < 2048 else q / 0", "queries of bad returns numbers that are not finite"),
    (
        BIAS,
        "return torch.zeros(64, 64)[: len(context.positions_N)]",
        "bias of bad must return a tensor that broadcasts",
    ),
    (BIAS, "return 0.0", "bias of bad must return a tensor that broadcasts to (2, 4, 8, 8), not 0.0"),
    (BIAS, "return torch.log(context.positions_N - 1)", "bias of bad returns numbers that are not finite"),
    (BIAS, "return torch.ones(1, dtype=torch.bool)", "bias of bad must hold numbers, not bool"),
    (
        BIAS,
        "return torch.ones(2, 1, 1)",
        "bias of bad must return a tensor that broadcasts to (2, 4, 8, 8), not shape (2, 1, 1)",
    ),
    (
        BIAS,
        "return torch.full((len(context.positions_N), 1), -torch.inf)",
        "bad lets the token at position 0 of 8 see no key",
    ),
    (MASK, "return torch.ones(1)", "mask of bad must hold true and false, not float32"),
    (
        MASK,
        "return context.positions_N[:, None] > context.positions_N",
        "bad lets the token at position 0 of 8 see no key",
    ),
    (
        MASK,
        "return (i := context.positions_N)[:, None] < 100 + 0 * i",
        "bad lets the token at position 100 of 1024 see no k",
    ),
    (MASK, "return context.positions_N < 100", None),
    (
        MASK,
        "return torch.ones(64, dtype=torch.bool)[context.positions_N.long()]",
        "bad fails on a small example: IndexErr",
    ),
    (
        ANGLES,
        "return torch.ones(len(context.positions_N), 2)",
        "angles of bad must return a tensor of shape (8, 32) or ",
    ),
    (MIX, "return v.detach()", "mix of bad lets no gradient through"),
    (MIX, "return v * torch.rand(1)", "mix of bad returns other numbers when asked twice"),
    (
        MIX,
        "return v if v.shape[2] < 64 else v[:, :, :9]",
        "mix of bad must return a tensor of shape (1, 4, 64, 64), not",
    ),
]


def arm_with(methods: str, folder: Path) -> dict[str, Any]:
    """An arm whose attention, called bad, has these methods."""
    path = folder / "bad.py"
    path.write_text(
        "import dataclasses, torch\n"
        "from attnscale.attention import Attention, register\n"
        "@register('bad')\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Bad(Attention):\n"
        "    'Broken.'\n"
        f"    formula, source = 'none', 'a test'\n{methods}"
    )
    return {"attention": {"name": "bad", "module": str(path)}}


@pytest.mark.parametrize(
    ("method", "body", "words"),
    [(FACTOR, *item) for item in BAD_VARIANTS.items()] + [(LEARNED, *item) for item in BAD_LEARNED.items()] + MORE_BAD,
)
def test_a_variant_that_cannot_work_is_refused_with_the_configuration(method, body, words, tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "_REGISTRY", dict(registered()))
    data = {"name": "x", "arms": {"a": arm_with(f"    def {method}:\n        {body}\n", tmp_path)}}
    if words is None:
        assert parse_config(data, "x.yaml").arms
        return
    with pytest.raises(UserError) as caught:
        parse_config(data, "x.yaml")
    assert str(caught.value).startswith(f"x.yaml: arms.a.attention: {words}")
    assert "\n" not in str(caught.value)


def test_a_position_repair_and_a_mask_that_leave_a_token_no_key_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "_REGISTRY", dict(registered()))
    far = "    def mask(self, context):\n        return context.positions_N < 8\n"
    arm = arm_with(far, tmp_path)
    assert parse_config({"name": "x", "arms": {"a": arm}}, "x.yaml").arms
    with pytest.raises(UserError, match=r"arms\.a\.attention: bad lets the token at position 71 of 1024 see no key"):
        parse_config({"name": "x", "arms": {"a": {**arm, "positions": "band"}}}, "x.yaml")


def test_an_attention_that_ignores_what_is_learned_can_be_tested_on_finished_weights_but_not_trained(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(attention, "_REGISTRY", dict(registered()))
    arm = arm_with(f"    def {LEARNED}:\n        return {{'slope': torch.ones(heads)}}\n", tmp_path)
    arms = {"s": {"attention": "ssmax"}, "plain": {**arm, "weights_of": "s"}}
    assert parse_config({"name": "x", "arms": arms}, "x").arms
    with pytest.raises(UserError, match=r"arms\.b\.attention: learned of bad returns slope, which no gradient reaches"):
        parse_config({"name": "x", "arms": {**arms, "b": arm}}, "x")


def test_learned_values_that_change_between_the_arms_that_share_them_name_the_arm(tmp_path, monkeypatch):
    """Asked for the third time, while the two arms are compared."""
    monkeypatch.setattr(attention, "_REGISTRY", dict(registered()))
    arm = arm_with(
        "    def learned(self, *, heads, training_length, calls=[]):\n"
        "        calls.append(1)\n"
        "        return {'a': torch.ones(heads)} if len(calls) < 3 else 1 / 0\n"
        "    def queries(self, q, context):\n"
        "        return q * context.learned['a'][:, None, None]\n",
        tmp_path,
    )
    arms = {"o": {"attention": "attention_o"}, "t": {**arm, "weights_of": "o"}}
    with pytest.raises(UserError, match=r"^x: arms\.t\.attention: bad fails on a small example: ZeroDivisionError"):
        parse_config({"name": "x", "arms": arms}, "x")


def test_an_attention_with_large_tables_is_tried_in_little_time_and_leaves_the_threads_and_torch_as_they_were():
    """Distances of every pair in every head at 16 heads and 65536 tokens would take 64 GiB in single precision."""

    @dataclasses.dataclass(frozen=True)
    class Slopes(Attention):
        name = "slopes"

        def learned(self, *, heads, training_length):
            return {"slope": torch.ones(heads)}

        def bias(self, context):
            distance = (context.positions_N[:, None] - context.positions_N).abs()
            return -distance * context.learned["slope"][:, None, None]

    torch.manual_seed(0)
    before = torch.get_rng_state()
    torch.set_num_threads(2)
    begin = time.process_time()
    try_out(Slopes(), longest=65536, training_length=64, heads=16, head_size=64)
    assert time.process_time() - begin < 3
    assert torch.get_num_threads() == 2
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("@register(3)\n@dataclasses.dataclass(frozen=True)\nclass A(Attention): pass", r"@register\(3\) needs a name"),
        ("@register('a')\nclass A(Attention):\n    'A.'\n    formula = source = 'x'", "needs @dataclasses.dataclass"),
        ("@register('a')\ndef a(): pass", "no subclass of Attention"),
        ("@register('a')\n@dataclasses.dataclass(frozen=True)\nclass A(Attention): pass", "needs a docstring and"),
        ("import sys\nsys.exit(3)", "does not import: SystemExit: 3"),
    ],
)
def test_a_module_that_registers_badly_is_refused(lines, words, tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "_REGISTRY", dict(registered()))
    path = tmp_path / "bad.py"
    path.write_text(f"import dataclasses\nfrom attnscale.attention import Attention, register\n{lines}\n")
    with pytest.raises(UserError, match=words):
        make_variant("a", {}, str(path))


def test_every_arm_must_name_the_module_that_it_needs(tmp_path, monkeypatch):
    """Each job is a process of its own, which knows nothing of the modules of other arms."""
    monkeypatch.setattr(attention, "_REGISTRY", dict(registered()))
    path = tmp_path / "mine.py"
    path.write_text(
        "import dataclasses\n"
        "from attnscale.attention import Attention, register\n"
        "@register('mine_too')\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Mine(Attention):\n"
        "    'Mine.'\n"
        "    formula = source = 'x'\n"
    )
    arms = {
        "o": {"attention": "attention_o"},
        "a": {"attention": {"name": "mine_too", "module": str(path)}},
        "b": {"weights_of": "o", "attention": "mine_too"},
    }
    with pytest.raises(UserError, match=r"arms\.b\.attention: .* name it as `module` in this arm too"):
        parse_config({"name": "x", "arms": arms}, "x.yaml")
    arms["b"]["attention"] = arms["a"]["attention"]
    parse_config({"name": "x", "arms": arms}, "x.yaml")
