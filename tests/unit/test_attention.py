"""Every registered attention: formulas, a naive reference, gradients; a new file gets these tests for free."""

import dataclasses
import math

import pytest
import torch

from attnscale import attention
from attnscale.attention import Context, make_variant, register, registered, source_file
from attnscale.attention.base import describe
from attnscale.config import parse_config
from attnscale.errors import UserError

FORMULAS = {
    "attention_o": lambda n, d: 1 / math.sqrt(d),
    "attention_e": lambda n, d: math.log(n) / math.log(512) / math.sqrt(d),
    "attention_e_kappa": lambda n, d: math.log(n) / d,
    "acl2022": lambda n, d: math.log(n) / math.sqrt(d),
}


def make_context(lengths, size=None, head_size=32, heads=2, training_length=64):
    size = size or max(lengths)
    mask = torch.arange(size)[None, :] < torch.tensor(lengths)[:, None]
    return Context(
        n_B=torch.tensor(lengths, dtype=torch.float64), key_mask_BM=mask,
        positions_N=torch.arange(size, dtype=torch.float64), training_length=training_length,
        heads=heads, head_size=head_size,
    )  # fmt: skip


@pytest.mark.parametrize("d", [32, 64])
@pytest.mark.parametrize("name", list(FORMULAS))
def test_factor_equals_its_formula(name, d):
    lengths = [16, 64, 512, 1024]
    factor = make_variant(name, {}).factor(make_context(lengths, head_size=d))
    expected = torch.tensor([FORMULAS[name](n, d) for n in lengths], dtype=torch.float64)
    torch.testing.assert_close(factor, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("d", [32, 64])
def test_attention_e_equals_attention_o_at_512(d):
    context = make_context([512], head_size=d)
    for other in (
        make_variant("attention_e", {}),
        make_variant("attention_e_kappa", {"kappa": math.sqrt(d) / math.log(512)}),
    ):
        torch.testing.assert_close(other.factor(context), make_variant("attention_o", {}).factor(context))


@pytest.mark.parametrize("length", [16, 64, 100])
def test_attention_e_with_base_training_length_is_attention_o_in_training(length):
    context = make_context([length], training_length=length)
    switched = make_variant("attention_e", {"base": "training_length"})
    torch.testing.assert_close(switched.factor(context), make_variant("attention_o", {}).factor(context))


def test_the_formulas_tested_here_are_those_of_registered_variants():
    assert set(FORMULAS) <= set(registered())


@pytest.mark.parametrize("name", list(registered()))
class TestEveryVariant:
    def test_agrees_with_a_naive_float64_reference(self, name):
        variant, context = make_variant(name, {}), make_context([20, 13], head_size=8)
        generator = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(2, 2, 20, 8, generator=generator) for _ in range(3))
        factor = variant.factor(context)
        ours = variant.mix(q * factor.float()[:, None, None, None], k, v, context, 0.0)
        for row, real in enumerate([20, 13]):
            for head in range(2):
                for query in range(real):
                    scores = [
                        sum(q[row, head, query, i].item() * k[row, head, key, i].item() for i in range(8))
                        * factor[row].item()
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
        variant, context = make_variant(name, {}), make_context([5, 3], head_size=4)
        generator = torch.Generator().manual_seed(0)
        inputs = [
            torch.randn(2, 2, 5, 4, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3)
        ]
        factor = variant.factor(context)[:, None, None, None]
        assert torch.autograd.gradcheck(lambda q, k, v: variant.mix(q * factor, k, v, context, 0.0), inputs)

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
    for base in (1, 0, -2, "L"):
        with pytest.raises(UserError, match="base of attention_e must be"):
            make_variant("attention_e", {"base": base}).check(longest=64, training_length=16)
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


@pytest.mark.parametrize("body", list(BAD_VARIANTS))
def test_a_variant_that_cannot_work_is_refused_with_the_configuration(body, tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "_REGISTRY", dict(registered()))
    path = tmp_path / "bad.py"
    path.write_text(
        "import dataclasses, torch\n"
        "from attnscale.attention import Attention, register\n"
        "@register('bad')\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Bad(Attention):\n"
        "    'Broken.'\n"
        "    formula, source = 'none', 'a test'\n"
        f"    def factor(self, context):\n        {body}\n"
    )
    with pytest.raises(UserError) as caught:
        parse_config({"name": "x", "arms": {"a": {"attention": {"name": "bad", "module": str(path)}}}}, "x.yaml")
    assert str(caught.value).startswith(f"x.yaml: arms.a.attention: {BAD_VARIANTS[body]}")
    assert "\n" not in str(caught.value)


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
