"""The derivation: known constants, exact cases, sampled keys, and the numbers of the notes on the literature."""

import dataclasses
import itertools
import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import integrate, special

from attnscale import attention
from attnscale.analysis.theory import (
    consequences,
    random_key_scales,
    read_theory,
    theory_table,
    write_theory,
)
from attnscale.analysis.theory_entropy import (
    constant_entropy_multiplier,
    entropy_drop,
    freezing_sigma,
    gaussian_entropy,
    saddle_closed,
    saddle_root,
    sphere_entropy,
)
from attnscale.attention import Attention, register, registered
from attnscale.errors import UserError
from attnscale.rng import Stream

LENGTHS = (64, 128, 256, 512, 1024)
ROWS = 400  # of keys, behind each number of the tables that were sampled

# Entropy lost at d = 64, by lambda: exact, saddle point, lambda² d / 2, 0.24 lambda d; None where not printed.
DROPS = {
    0.05: (0.080, 0.080, 0.080, 0.77),
    0.125: (0.489, 0.489, 0.500, 1.92),
    0.2: (1.211, 1.209, 1.28, 3.07),
    0.3: (2.56, 2.55, 2.88, 4.61),
    0.5: (6.05, 6.02, 8.0, 7.68),
    1.0: (15.47, 15.40, 32.0, 15.36),
}
# Entropy at n = 64 for normal logits of spread sigma, then the multiplier that keeps it at 128 ... 1024; sampled.
MULTIPLIERS = {
    0.5: (4.04, 2.63, 3.66, 4.36, 5.22),
    1.0: (3.69, 1.61, 2.08, 2.40, 2.84),
    1.5: (3.18, 1.35, 1.65, 1.84, 2.15),
    2.0: (2.65, 1.25, 1.47, 1.60, 1.85),
    2.5: (2.18, 1.21, 1.39, 1.48, 1.70),
    3.0: (1.81, 1.19, 1.34, 1.42, 1.62),
    4.0: (1.31, 1.17, 1.28, 1.35, 1.53),
}
# Entropy of random keys at d = 64 and n = 64 ... 1024; sampled.
RANDOM_KEYS = {
    "attention_o": (3.68, 4.38, 5.06, 5.76, 6.44),
    "attention_e(base=512)": (3.94, 4.56, 5.16, 5.76, 6.33),
    "attention_e(base=training_length)": (3.68, 4.21, 4.71, 5.18, 5.64),
    "sqrt_log_n(base=training_length)": (3.70, 4.30, 4.91, 5.53, 6.13),
    "infoscale(base=training_length)": (3.69, 4.31, 4.92, 5.54, 6.16),
    "acl2022": (1.32, 1.23, 1.33, 1.24, 1.29),
    "attention_e_kappa(kappa=1)": (4.03, 4.67, 5.31, 5.94, 6.57),
    "attention_e_kappa(kappa=4.166667)": (2.48, 2.69, 2.82, 2.93, 2.92),
}


@pytest.fixture(scope="module")
def table():
    return theory_table(head_size=64, lengths=LENGTHS, training_length=64)


@pytest.fixture(scope="module")
def normals():
    return special.ndtri(Stream("test theory", 0).uniforms(ROWS * max(LENGTHS)) + 2.0**-54).reshape(ROWS, -1)


def entropies(logits):
    log_weights = logits - special.logsumexp(logits, axis=-1, keepdims=True)
    return -(np.exp(log_weights) * log_weights).sum(axis=-1)


def value(table, quantity, **where):
    chosen = table[table["quantity"] == quantity]
    for column, wanted in where.items():
        chosen = chosen[chosen[column] == wanted]
    assert len(chosen) == 1
    return chosen["value"].item()


# ---- constants and saddle point ----------------------------------------------------------------------------------


def test_the_constant_is_half_the_log_of_the_golden_ratio():
    golden = (1 + math.sqrt(5)) / 2
    assert saddle_closed(1.0).slope == pytest.approx(0.5 * math.log(golden), rel=1e-15)
    assert saddle_closed(1.0).cos == pytest.approx(1 / golden, rel=1e-15)
    assert round(saddle_closed(1.0).slope, 4) == 0.2406


@pytest.mark.parametrize("factor", [0.01, 0.125, 0.5, 1.0, 3.0, 100.0])
def test_saddle_point_by_root_finding_equals_the_closed_form(factor):
    assert saddle_root(factor) == pytest.approx(saddle_closed(factor), rel=1e-9)
    closed = saddle_closed(factor)
    assert closed.cos == pytest.approx((math.sqrt(1 + 4 * factor**2) - 1) / (2 * factor), rel=1e-10)
    assert closed.cos**2 + closed.sin2 == pytest.approx(1, rel=1e-12)


def test_constants_of_the_article_and_of_its_forerunner(table):
    for method in ("closed form", "root finding"):
        assert round(value(table, "saddle_slope", method=method), 4) == 0.2406
    assert round(value(table, "kappa_of_slope"), 2) == 4.16
    assert round(value(table, "embedding_size_of_slope"), 2) == 8.31
    assert round(value(table, "kappa_at_base", d=64), 3) == 1.282


def test_multipliers_of_the_usual_scale_at_the_training_length(table):
    multiplier = partial(value, table, "scale_multiplier", d=64, n=64)
    assert multiplier(parameter="attention_o") == 1
    assert round(multiplier(parameter="attention_e(base=512)"), 3) == 0.667
    assert round(multiplier(parameter="acl2022"), 3) == 4.159
    assert round(multiplier(parameter="attention_e_kappa(kappa=1)"), 2) == 0.52
    kept = value(table, "scale_multiplier", d=64, n=512, parameter="attention_e_kappa(kappa=4.166667)")
    assert round(kept, 2) == 3.25


def test_logits_freeze_at_the_spread_of_the_random_energy_model(table):
    assert round(freezing_sigma(64), 2) == 2.88
    assert round(value(table, "freezing_sigma", n=1024), 2) == 3.72


# ---- entropy of very many keys -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "factor"), [*itertools.product([2, 32, 64, 128], [0.05, 0.125, 0.5, 1.0])])
def test_quadrature_equals_the_bessel_functions_that_the_sphere_leads_to(d, factor):
    spread, order = factor * d, d / 2 - 1
    bessel = special.ive(order, spread)
    log_mean = special.gammaln(d / 2) + order * math.log(2 / spread) + math.log(bessel) + spread
    expected = spread * special.ive(order + 1, spread) / bessel - log_mean
    assert entropy_drop(factor, d)["quadrature"] == pytest.approx(expected, abs=1e-11)


@pytest.mark.parametrize("factor", DROPS)
def test_entropy_lost_is_that_of_the_notes(table, factor):
    methods = ("quadrature", "saddle point", "quadratic", "linear")
    for method, printed in zip(methods, DROPS[factor], strict=True):
        found = value(table, "entropy_drop", d=64, parameter=f"{factor:g}", method=method)
        digits = 3 if printed < 1.25 and method != "linear" else 2
        assert round(found, digits) == printed, method


def test_every_estimate_is_right_where_it_was_made_and_only_there():
    assert entropy_drop(0.001, 64)["quadratic"] == pytest.approx(entropy_drop(0.001, 64)["quadrature"], rel=1e-4)
    at_one = entropy_drop(1.0, 4096)
    assert at_one["linear"] == pytest.approx(at_one["quadrature"], rel=0.003)
    assert at_one["saddle point"] == pytest.approx(at_one["quadrature"], rel=1e-4)
    assert at_one["quadratic"] > 2 * at_one["quadrature"]


def test_the_table_has_the_usual_scale_of_every_head_size():
    table = theory_table(head_size=16, lengths=[32], training_length=16)
    for d in (16, 32, 64, 128):
        assert value(table, "entropy_drop", d=d, parameter=f"{d**-0.5:.7g}", method="quadratic") == pytest.approx(0.5)


# ---- entropy of n keys -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.01, 0.5, 1.0, 3.0, 10.0])
def test_entropy_of_two_normal_logits_equals_one_integral_over_their_difference(sigma):
    def integrand(z):
        weight = special.expit(math.sqrt(2) * sigma * z)
        return float(special.entr(weight) + special.entr(1 - weight)) * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)

    expected, _ = integrate.quad(integrand, -9, 9, epsabs=1e-12, limit=400, points=[0.0])
    assert gaussian_entropy(sigma, 2) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("factor", [0.3, 1.5, 10.0])
def test_entropy_of_two_keys_in_four_dimensions_equals_a_double_integral_over_their_angles(factor):
    # Gauss-Legendre on many nodes; the density of theta is sin² / (pi / 2).
    nodes, node_weights = special.roots_legendre(400)
    theta = (nodes + 1) * math.pi / 2
    density = node_weights * np.sin(theta) ** 2
    weight = special.expit(4 * factor * (np.cos(theta)[:, None] - np.cos(theta)))
    expected = density @ (special.entr(weight) + special.entr(1 - weight)) @ density
    assert sphere_entropy(factor, 4, 2) == pytest.approx(expected, abs=1e-9)


def test_one_key_has_no_entropy_and_equal_keys_have_all():
    assert gaussian_entropy(2.0, 1) == pytest.approx(0, abs=1e-10)
    assert sphere_entropy(0.5, 64, 1) == pytest.approx(0, abs=1e-10)
    assert sphere_entropy(0.0, 64, 100) == pytest.approx(math.log(100), abs=1e-10)
    assert gaussian_entropy(1e-6, 100) == pytest.approx(math.log(100), abs=1e-9)


@pytest.mark.parametrize(("d", "factor", "n"), [(4, 0.5, 64), (4, 2.0, 16), (64, 0.125, 64), (64, 0.52, 64)])
def test_sampled_keys_on_the_sphere_agree(d, factor, n):
    uniforms = Stream("test theory keys", d, n).uniforms(ROWS * n * d) + 2.0**-54
    keys = special.ndtri(uniforms).reshape(ROWS, n, d)
    cos = keys[..., 0] / np.linalg.norm(keys, axis=-1)
    sampled = entropies(factor * d * cos)
    assert sphere_entropy(factor, d, n) == pytest.approx(sampled.mean(), abs=3.5 * sampled.std() / math.sqrt(ROWS))


@pytest.mark.parametrize(("sigma", "n"), [(0.5, 64), (3.0, 64), (3.0, 1024), (8.0, 256)])
def test_sampled_normal_logits_agree(normals, sigma, n):
    sampled = entropies(sigma * normals[:, :n])
    assert gaussian_entropy(sigma, n) == pytest.approx(sampled.mean(), abs=3.5 * sampled.std() / math.sqrt(ROWS))


def test_with_many_keys_the_entropy_is_that_of_the_derivation():
    drop = entropy_drop(0.125, 64)["quadrature"]
    assert math.log(10**7) - sphere_entropy(0.125, 64, 10**7) == pytest.approx(drop, abs=1e-6)
    # In many dimensions logits become normal.
    assert sphere_entropy(1 / 64, 4096, 64) == pytest.approx(gaussian_entropy(1.0, 64), abs=2e-4)


def test_the_sign_of_a_factor_does_not_matter():
    assert sphere_entropy(-0.3, 32, 100) == sphere_entropy(0.3, 32, 100)


@pytest.mark.parametrize("label", RANDOM_KEYS)
def test_entropy_of_random_keys_is_that_of_the_notes(table, normals, label):
    for n, printed in zip(LENGTHS, RANDOM_KEYS[label], strict=True):
        multiplier = value(table, "scale_multiplier", parameter=label, n=n)
        noise = entropies(multiplier * normals[:, :n]).std() / math.sqrt(ROWS)
        found = value(table, "random_keys_entropy", parameter=label, n=n, d=64)
        assert found == pytest.approx(printed, abs=3 * noise + 0.005), n


# ---- multiplier that keeps entropy -------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", MULTIPLIERS)
def test_the_multiplier_that_keeps_entropy_is_that_of_the_notes(table, normals, sigma):
    at_64, *printed = MULTIPLIERS[sigma]
    noise_64 = entropies(sigma * normals[:, :64]).std() / math.sqrt(ROWS)
    entropy = value(table, "gaussian_entropy", parameter=f"{sigma:g}", n=64)
    assert entropy == pytest.approx(at_64, abs=3 * noise_64 + 0.005)
    for n, number in zip(LENGTHS[1:], printed, strict=True):
        found = value(table, "constant_entropy_multiplier", parameter=f"{sigma:g}", n=n)
        noise_n = entropies(found * sigma * normals[:, :n]).std() / math.sqrt(ROWS)
        per_unit = (
            (gaussian_entropy(0.99 * found * sigma, n) - gaussian_entropy(1.01 * found * sigma, n)) / 0.02 / found
        )
        assert found == pytest.approx(number, abs=3 * math.hypot(noise_64, noise_n) / per_unit + 0.005), n


@pytest.mark.parametrize("n", [16, 32, 128, 2048])
def test_the_multiplier_keeps_entropy(n):
    multiplier = constant_entropy_multiplier(4.0, n, 64)
    assert gaussian_entropy(4.0 * multiplier.value, n) == pytest.approx(gaussian_entropy(4.0, 64), abs=1e-9)
    assert multiplier.value == pytest.approx((math.log(n) / math.log(64)) ** multiplier.power, rel=1e-12)
    assert (multiplier.value > 1) == (n > 64)


def test_diffuse_heads_need_more_than_log_n_and_frozen_ones_less():
    powers = [constant_entropy_multiplier(sigma, 1024, 64).power for sigma in (0.5, 1, 2, 2.5, 3, 4, 8, 16)]
    assert powers == sorted(powers, reverse=True)
    assert powers[0] > 3
    assert powers[3] == pytest.approx(1, abs=0.05)
    assert powers[-1] < 0.7
    nearest = [constant_entropy_multiplier(sigma, 1024, 64).nearest for sigma in (2.5, 8.0)]
    assert nearest == ["log n", "sqrt(log n)"]


def test_no_multiplier_lifts_few_keys_above_their_largest_entropy():
    none = constant_entropy_multiplier(0.5, 32, 64)
    assert math.isnan(none.value)
    assert none.nearest is None


def test_at_the_training_length_nothing_is_multiplied():
    same = constant_entropy_multiplier(2.0, 64, 64)
    assert same.value == 1
    assert same.nearest is None


def test_the_laws_are_those_of_the_notes(table):
    log = [round(value(table, "law_multiplier", n=n, method="log n"), 3) for n in LENGTHS[1:]]
    root = [round(value(table, "law_multiplier", n=n, method="sqrt(log n)"), 3) for n in LENGTHS[1:]]
    assert log == [1.167, 1.333, 1.5, 1.667]
    assert root == [1.08, 1.155, 1.225, 1.291]
    assert value(table, "nearest_law_power", n=1024, parameter="2.5") == 1
    assert value(table, "nearest_law_power", n=1024, parameter="8") == 0.5


# ---- registered scales -------------------------------------------------------------------------------------------


def test_every_registered_variant_is_in_the_table_or_left_out_with_a_reason(table):
    rows = table[table["quantity"].isin(["random_keys_entropy", "random_keys_left_out"])]
    names = {label.partition("(")[0] for label in rows["parameter"]}
    assert names == set(registered())
    left_out = table[table["quantity"] == "random_keys_left_out"].set_index("parameter")["method"]
    assert left_out["log_position(base=training_length)"] == "its factor differs between heads or positions"
    assert left_out["ssmax"] == "it learns a part of its scale"


def test_a_variant_of_the_user_appears_and_one_that_is_more_than_a_factor_says_so(monkeypatch):
    monkeypatch.setattr(attention, "_REGISTRY", dict(registered()))

    @register("halved")
    @dataclasses.dataclass(frozen=True)
    class Halved(Attention):
        """Half the usual scale."""

        formula, source = "1 / (2 sqrt(d))", "made up"

        def factor(self, context):
            return super().factor(context) / 2

    @register("distance_bias")
    @dataclasses.dataclass(frozen=True)
    class DistanceBias(Halved):
        """With a bias on top."""

        slope: float = 1.0

        def bias(self, context):
            positions = context.positions_N
            return -self.slope * (positions[:, None] - positions).abs()

    @register("needs_a_value")
    @dataclasses.dataclass(frozen=True)
    class NeedsAValue(Attention):
        """Its parameter has no default."""

        formula, source = "power / sqrt(d)", "made up"
        power: float

    @register("infinite")
    @dataclasses.dataclass(frozen=True)
    class Infinite(Attention):
        """Fails at one length only."""

        formula, source = "1 / (n - 96)", "made up"

        def factor(self, context):
            return 1 / (context.n_B - 96)

    @register("sum_of_values")
    @dataclasses.dataclass(frozen=True)
    class SumOfValues(Attention):
        """No softmax at all."""

        formula, source = "mean of values", "made up"

        def mix(self, q_BHND, k_BHMD, v_BHMD, context, dropout):
            return torch.zeros_like(q_BHND) + v_BHMD.mean(dim=2, keepdim=True)

    scales = {scale.label: scale for scale in random_key_scales(64, [64, 96, 128], 64)}
    assert scales["halved"].factors == {64: 0.0625, 96: 0.0625, 128: 0.0625}
    assert scales["distance_bias(slope=1)"].left_out == "it adds a bias or a mask to the logits"
    assert scales["needs_a_value"].left_out == (
        "it cannot be used as it is: needs_a_value needs a value for power; give it beside the name"
    )
    assert scales["infinite"].left_out == "its factor is not finite at one of the lengths"
    assert scales["sum_of_values"].left_out == "it replaces the softmax of scaled products"
    assert not any(scale.factors for scale in scales.values() if scale.left_out)


# ---- the file and the sentences ----------------------------------------------------------------------------------


def test_the_file_holds_the_table_to_seven_digits(tmp_path, table):
    write_theory(tmp_path / "theory.csv", head_size=64, lengths=LENGTHS, training_length=64)
    read = read_theory(tmp_path / "theory.csv")
    pd.testing.assert_frame_equal(read, table, rtol=1e-6)
    assert (tmp_path / "theory.csv").read_text().startswith("quantity,d,n,parameter,method,value\nsaddle_cos,,,1,")
    assert not table.duplicated(["quantity", "d", "n", "parameter", "method"]).any()


def test_order_and_repetition_of_lengths_do_not_change_a_byte(tmp_path):
    for name, lengths in (("one", [256, 16, 64, 16]), ("two", [16, 256])):
        write_theory(tmp_path / name, head_size=32, lengths=lengths, training_length=64)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_module_of_the_user_joins_the_table(tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "_REGISTRY", dict(registered()))
    (tmp_path / "mine.py").write_text(
        "import dataclasses\n"
        "from attnscale.attention import Attention, register\n\n"
        '@register("mine")\n@dataclasses.dataclass(frozen=True)\nclass Mine(Attention):\n'
        '    """The usual one."""\n    formula = "1 / sqrt(d)"\n    source = "made up"\n'
    )
    module = str(tmp_path / "mine.py")
    write_theory(tmp_path / "t.csv", head_size=32, lengths=[32], training_length=16, modules=[module])
    table = read_theory(tmp_path / "t.csv")
    mine = value(table, "random_keys_entropy", parameter="mine", n=32)
    assert mine == value(table, "random_keys_entropy", parameter="attention_o", n=32)


def test_the_sentences_say_what_the_numbers_say(table):
    first, second = consequences(table)
    for number in ("0.489", "1.92", "3.9 times", "0.500", "d = 64"):
        assert number in first
    assert "grows by 2.75 nats from n = 64 to 1024 under 1/sqrt(d)" in second
    assert "log(n) / log(512) / sqrt(d) does not keep it constant (+2.39)" in second
    assert "log(n) / (0.24 d) nearly keeps it constant (+0.42)" in second


def test_the_sentences_change_with_the_numbers(table):
    changed = table.copy()
    keys = (changed["quantity"] == "random_keys_entropy") & (changed["n"] == 1024)
    for label, entropy in (("attention_e(base=512)", 3.9), ("attention_e_kappa(kappa=4.166667)", 4.0)):
        changed.loc[keys & (changed["parameter"] == label), "value"] = entropy
    _, second = consequences(changed)
    assert "log(n) / log(512) / sqrt(d) nearly keeps it constant (−0.04)" in second
    assert "log(n) / (0.24 d) keeps it constant only in part (+1.48)" in second


def test_one_length_gives_no_verdict():
    _, second = consequences(theory_table(head_size=32, lengths=[16], training_length=16))
    assert second == "With n = 16 as the only length, nothing follows about constancy of entropy."


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"head_size": 1}, "head_size from 2 on, not 1"),
        ({"training_length": 1}, "training_length from 2 on, not 1"),
        ({"lengths": [64, 0]}, "n from 2 on, not 0"),
    ],
)
def test_numbers_without_meaning_are_refused(tmp_path, arguments, words):
    fine = {"head_size": 32, "lengths": [64], "training_length": 16}
    with pytest.raises(UserError, match=words):
        write_theory(tmp_path / "theory.csv", **(fine | arguments))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "call",
    [
        partial(gaussian_entropy, 0.0, 64),
        partial(gaussian_entropy, math.nan, 64),
        partial(gaussian_entropy, 1.0, 0),
        partial(sphere_entropy, math.inf, 64, 64),
        partial(sphere_entropy, 0.1, 1, 64),
        partial(constant_entropy_multiplier, -1.0, 128, 64),
        partial(constant_entropy_multiplier, 1.0, 1, 64),
        partial(constant_entropy_multiplier, 1.0, 128, 1),
        partial(entropy_drop, 0.0, 64),
        partial(saddle_root, -1.0),
        partial(freezing_sigma, 1),
    ],
)
def test_functions_refuse_what_has_no_meaning_in_one_sentence(call):
    with pytest.raises(UserError, match=r"must be a (\w+ )?number"):
        call()


def test_a_missing_or_foreign_file_is_told(tmp_path):
    with pytest.raises(UserError, match="is missing; run the stage"):
        read_theory(tmp_path / "theory.csv")
    (tmp_path / "theory.csv").write_text("arm,seed\no,0\n")
    with pytest.raises(UserError, match=r"is damaged \(it has no column quantity\)"):
        read_theory(tmp_path / "theory.csv")
    (tmp_path / "theory.csv").write_text("quantity,d,n,parameter,method,value\n")
    with pytest.raises(UserError, match="holds no rows; delete it"):
        read_theory(tmp_path / "theory.csv")
