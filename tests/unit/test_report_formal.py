"""FIRST and PARITY in the report, where there is little of them or much."""

import pytest

from attnscale.config import parse_config
from attnscale.formal.tables import read_complete, read_exact
from attnscale.report import page
from attnscale.report.data import Formal
from attnscale.report.figures import formal as module
from attnscale.report.formal import curve_arms, exact_sentence, formal_grid, parity_sentence
from tests.unit import synthetic_run


class Data:
    """The part of `RunData` that the formal languages need."""

    def __init__(self, folder, **sections):
        folder.mkdir()
        arms = {"attention_o": {"attention": "attention_o"}}
        given = {"name": "a", "arms": arms, "statistics": {"resamples": 200}, **sections}
        self.config = parse_config(given, "here")
        synthetic_run._write_formal(folder, self.config)
        self.formal = {
            task: Formal(
                section,
                read_complete(folder / f"{task}.csv", section),
                read_exact(folder / f"exact_{task}.csv", self.config.exact_settings(task)),
            )
            for task, section in self.config.formal.items()
        }


@pytest.fixture
def drawn(monkeypatch):
    """Figures before they are written, as `draw(data)` returns them, with their captions."""
    monkeypatch.setattr(module, "finish", lambda figure, name, caption, alt: (figure, caption, alt))


MINE = '''
from dataclasses import dataclass
from attnscale.attention import Attention, register

@register("mine_of_formal")
@dataclass(frozen=True)
class Mine(Attention):
    """As sharp again."""
    formula = "2 / sqrt(d)"
    source = "nobody"
    def factor(self, context):
        return 2 / context.head_size**0.5 + 0 * context.n_B
'''

SHORT = {"epochs": 20, "test_every": 10, "seeds": (0, 1, 2)}


def test_every_number_of_arms_can_be_drawn(drawn, tmp_path):
    arms = {f"a{k}": {"attention": {"name": "attention_e_kappa", "kappa": 1.0 + k}} for k in range(50)}
    section = {**SHORT, "arms": arms, "seeds": (0,), "train_lengths": (10,), "test_lengths": (100,)}
    data = Data(tmp_path / "run", first=section, parity={**section, "test_lengths": (10,)})
    assert len(module.draw_first_by_scale(data)[0].axes[0].lines) == 51
    assert len(module.draw_first_loss(data)[0].axes[0].lines) == 50
    assert len(module.draw_parity(data)[0].axes[0].lines) == 51


def test_no_panel_cuts_off_what_another_has_drawn(drawn, monkeypatch, tmp_path):
    monkeypatch.setattr(synthetic_run, "right_share", lambda task, arm, train, *_: 0.9 if train == 10 else 0.1)
    data = Data(tmp_path / "run", first=SHORT, parity={**SHORT, "train_lengths": (10, 20)})
    first, parity = (draw(data)[0].axes for draw in (module.draw_first_loss, module.draw_parity))
    assert all(axis.get_ylim()[0] == 0 for axis in first)
    # 1.4 times 0.1 and 0.9, the losses of the panels.
    assert all(axis.get_ylim()[0] < 0.14 for axis in parity)
    assert all(axis.get_ylim()[1] > 1.26 for axis in (*first, *parity))


def test_an_attention_of_ones_own_stands_in_the_figure_after_the_papers(tmp_path):
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    arms = {
        **{name: {"attention": name} for name in ("attention_o", "ssmax")},
        "mine": {"attention": {"name": "mine_of_formal", "module": str(tmp_path / "mine.py")}},
    }
    data = Data(tmp_path / "run", first={**SHORT, "arms": arms})
    assert curve_arms(data.formal["first"]) == ["attention_o", "mine"]
    told = {formula.arm: formula for formula in page._formal_formulas(data, "first")}
    assert (told["mine"].formula, told["mine"].source) == ("2 / sqrt(d)", "nobody")
    assert told["mine"].origin == "on the logits"


def test_a_network_that_was_right_only_on_the_way_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(
        synthetic_run,
        "right_share",
        lambda task, arm, train, seed, test, done: 0.59 if done < 1 else 0.5,
    )
    told = parity_sentence(Data(tmp_path / "run", parity=SHORT))
    assert "the best is right on 50.0 %, and the best of all tests on the way has 59.0 %." in told


def test_a_single_test_is_seen_though_it_makes_no_line(drawn, tmp_path):
    once = {**SHORT, "test_every": 20}
    for section, marked in ((once, True), (SHORT, False)):
        data = Data(tmp_path / str(marked), first=section, parity=section)
        for draw in (module.draw_first_loss, module.draw_parity):
            curves = [line for line in draw(data)[0].axes[0].lines if len(line.get_xdata()) == (1 if marked else 2)]
            assert any((line.get_marker() not in ("", "None")) == marked for line in curves)


def test_one_seed_is_not_told_as_a_mean_with_an_interval(drawn, tmp_path):
    alone, several = (Data(tmp_path / str(len(seeds)), first={**SHORT, "seeds": seeds}) for seeds in ((4,), (0, 1, 2)))
    assert module.draw_first_loss(alone)[1].endswith("Lines are of one seed.")
    assert module.draw_first_loss(several)[1].endswith(
        "Lines are means over 3 seeds, bands hold the middle 80 % of them."
    )
    assert module.draw_first_by_scale(alone)[1].endswith("at the end of the training, of one seed; dashed: a coin.")
    assert "means over 3 seeds with 95 % intervals; dashed" in module.draw_first_by_scale(several)[1]


def test_answers_are_counted_and_not_strings_twice(tmp_path):
    data = Data(tmp_path / "run", first={**SHORT, "exact_lengths": (2, 30)}, parity={**SHORT, "exact_lengths": (2,)})
    # Two networks, without and with layer norm, answer the same strings.
    assert exact_sentence(data) == "600 of their 600 answers to strings of up to 30 bits are right."
    assert parity_sentence(data).startswith(
        "After 20 epochs of 100 strings, 0 of 6 networks are right on more than 60 %"
    )


def test_the_table_tells_first_who_has_learned_and_who_is_right_on_every_string(monkeypatch, tmp_path):
    # At its own length only what was trained on 10 bits is right, and beyond it nothing is.
    monkeypatch.setattr(
        synthetic_run, "right_share", lambda task, arm, train, seed, test, *_: 1.0 if train == test == 10 else 0.5
    )
    section = {**SHORT, "train_lengths": (10, 30), "test_lengths": (1000,)}
    blocks = formal_grid(Data(tmp_path / "run", first=section), "first").blocks
    assert [block.title for block in blocks] == [
        "networks of 3 that are right on every string, at the training length",
        "accuracy, %, at the training length",
        "loss in nats, at the training length",
        "networks of 3 that are right on every string, at 1,000 bits",
        "accuracy, %, at 1,000 bits",
        "loss in nats, at 1,000 bits",
    ]
    assert [[field.text for field in block.lines[0].fields] for block in (blocks[0], blocks[3])] == [
        ["3", "0"],
        ["0", "0"],
    ]
