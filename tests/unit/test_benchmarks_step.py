"""Where a step's time goes: each operator counts once, for what it is for."""

import pytest

from benchmarks import step


@pytest.mark.parametrize(
    ("names", "part"),
    [
        (["aten::mm", "aten::matmul"], "products with weights"),
        (["aten::bmm"], "products and softmax of attention"),
        (["aten::baddbmm", "Optimizer.step#Muon.step"], "Muon"),
        (["aten::_fused_adamw_", "Optimizer.step#AdamW.step"], "AdamW"),
        (["aten::_log_softmax"], "loss"),
        (["aten::_softmax"], "products and softmax of attention"),
        (["aten::gelu_backward"], "activation"),
        (["aten::native_layer_norm_backward"], "normalisation"),
        (["aten::copy_"], "copies and zeros"),
        (["aten::linalg_vector_norm"], step.REST),
    ],
)
def test_operators_are_told_apart(names, part):
    assert step.part_of(names) == part


def test_the_shares_of_a_real_step_add_up(capsys):
    step.main(step.Preset("smoke"), threads=1)
    rows = [line.split("│")[1:3] for line in capsys.readouterr().out.splitlines() if "%" in line]
    shares = {name.strip(): float(share.strip().rstrip("%")) for name, share in rows}
    assert {"Muon", "AdamW", "products with weights"} <= set(shares)
    assert sum(shares.values()) == pytest.approx(100, abs=0.6)
