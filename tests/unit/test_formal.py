"""FIRST and PARITY: strings, the plain network against torch's, the stack against the plain network, the stages."""

import itertools
import json
import math
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError

from attnscale.attention import registered
from attnscale.config import FIRST_ARMS, ExactSettings, FormalArm, FormalSettings, parse_config
from attnscale.errors import UserError
from attnscale.formal.exact import hand_built, measure, write_exact
from attnscale.formal.reference import Network, train_alone
from attnscale.formal.scales import make_scale
from attnscale.formal.stack import Stack
from attnscale.formal.tables import collect_arms, read_complete
from attnscale.formal.tasks import answers, batch, test_strings, training_strings, whole_strings
from attnscale.formal.training import COLUMNS, SHAPES, Place, Test, Trainer, train_arm
from attnscale.formal.weights import initial_weights, stacked

# Names with `test` or `Test` in front that are none.
test_strings.__test__ = False
Test.__test__ = False

TASKS = ("first", "parity")


@pytest.fixture(autouse=True)
def one_thread():
    """As the stages work; threads that wait for each other over such small sums take minutes on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


ARMS = list(FIRST_ARMS)
OWN = '''
import dataclasses
import torch
from attnscale.attention import Attention, register

@register("{name}")
@dataclasses.dataclass(frozen=True)
class Own(Attention):
    """Made for a test."""
    formula = "f"
    source = "s"
    {body}
'''
LEARNED = """def learned(self, *, heads, training_length): return {'a': torch.ones(heads)}
    def queries(self, q, c): """


def scale_of(arm, train=(10, 30), test=(1000,)):
    return make_scale(FIRST_ARMS[arm], train, test, heads=2, head_size=8)


def network_of(task, arm, length):
    return Network(task, SHAPES[task].heads, SHAPES[task].layers, scale_of(arm), length + 1)


def perturbed(task, arm, seed, length):
    """Weights in which no bias is zero, so that each of them can show."""
    weights = initial_weights(SHAPES[task], seed, scale_of(arm), length + 1, torch.float64)
    generator = torch.Generator().manual_seed(seed)
    return {
        name: value + 0.1 * torch.randn(value.shape, generator=generator, dtype=torch.float64)
        for name, value in weights.items()
    }


class TestStrings:
    def test_bits_are_even_and_differ_between_epochs_seeds_and_lengths(self):
        bits = training_strings("first", 0, 300, 0, 100)
        assert bits.shape == (100, 300)
        assert abs(bits.mean() - 0.5) < 0.02
        others = [
            training_strings("first", 0, 300, 1, 100),
            training_strings("first", 1, 300, 0, 100),
            training_strings("parity", 0, 300, 0, 100),
            test_strings("first", 0, 300, 100),
        ]
        assert all(abs((bits == other).mean() - 0.5) < 0.02 for other in others)
        assert np.array_equal(bits, training_strings("first", 0, 300, 0, 100))

    def test_answers_and_cls_of_known_strings(self):
        bits = np.array([[1, 0, 0], [0, 1, 1], [1, 1, 1]], dtype=np.uint8)
        assert answers("first", bits).tolist() == [1, -1, 1]
        assert answers("parity", bits).tolist() == [1, -1, 1]
        symbols, cls = whole_strings("first", bits)
        assert (symbols[1].tolist(), cls) == ([2, 0, 1, 1], 0)
        symbols, cls = whole_strings("parity", bits)
        assert (symbols[1].tolist(), cls) == ([0, 1, 1, 2], 3)

    def test_first_has_four_kinds_of_token_with_their_counts(self):
        found = batch("first", [np.array([[1, 0, 1, 1, 1]], dtype=np.uint8)], 16, torch.float64)
        assert found.symbols_STKC.argmax(dim=3).tolist() == [[[2, 1, 0, 1]]]
        assert torch.exp(found.log_counts_STK).round().tolist() == [[[1, 1, 1, 3]]]
        assert found.positions_KW[:, 0].tolist() == [0, 1, 0, 0]


class TestPlainNetwork:
    def test_it_is_torchs_encoder(self):
        """One layer of ours against torch.nn.TransformerEncoderLayer with the same weights."""
        torch.manual_seed(0)
        theirs = torch.nn.TransformerEncoderLayer(16, 2, 64, dropout=0.0, batch_first=True, dtype=torch.float64).eval()
        with torch.no_grad():
            for parameter in theirs.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        own = dict(theirs.named_parameters())
        for part in ("weight", "bias"):
            inward = own.pop(f"self_attn.in_proj_{part}")
            own |= {f"self_attn.q.{part}": inward[:16], f"self_attn.kv.{part}": inward[16:]}
        x = torch.randn(3, 7, 16, dtype=torch.float64)
        ours = network_of("parity", "attention_o", 6)._layer(own, x, x)
        torch.testing.assert_close(ours, theirs(x), rtol=0, atol=1e-12)

    def test_weights_start_as_torchs_modules_do(self):
        """Largest values and spreads, over many seeds, of matrices drawn by torch's own modules and by ours."""
        scale = scale_of("attention_o")
        ours = [initial_weights(SHAPES["first"], seed, scale, 11, torch.float64) for seed in range(40)]
        theirs = []
        for seed in range(40):
            torch.manual_seed(seed)
            layer = torch.nn.TransformerEncoderLayer(16, 1, 64)
            theirs.append({name: value.detach() for name, value in layer.named_parameters()})
        for name in ("linear1.weight", "linear1.bias", "linear2.weight", "linear2.bias", "self_attn.out_proj.weight"):
            mine = torch.stack([weights[f"layers.0.{name}"] for weights in ours]).abs()
            reference = torch.stack([weights[name] for weights in theirs]).abs()
            assert mine.max() == pytest.approx(float(reference.max()), rel=0.02), name
            assert mine.mean() == pytest.approx(float(reference.mean()), rel=0.05), name
        inward = torch.stack([weights["layers.0.self_attn.kv.weight"] for weights in ours])
        reference = torch.stack([weights["self_attn.in_proj_weight"] for weights in theirs])
        assert inward.abs().max() == pytest.approx(float(reference.abs().max()), rel=0.02)
        assert inward.std() == pytest.approx(float(reference.std()), rel=0.02)
        assert torch.stack([weights["embedding"] for weights in ours]).std() == pytest.approx(1.0, rel=0.05)

    def test_the_factor_on_the_query_input_leaves_the_bias_unscaled(self):
        weights = perturbed("first", "acl2022", 0, 10)
        bits = test_strings("first", 0, 50, 5)
        logits, query_input = (
            network_of("first", arm, 10).logits(weights, bits) for arm in ("acl2022", "acl2022_on_query_input")
        )
        assert (logits - query_input).abs().max() > 1e-3
        for layer in range(2):
            weights[f"layers.{layer}.self_attn.q.bias"].zero_()
        logits, query_input = (
            network_of("first", arm, 10).logits(weights, bits) for arm in ("acl2022", "acl2022_on_query_input")
        )
        torch.testing.assert_close(logits, query_input, rtol=0, atol=1e-12)


class TestStack:
    @pytest.mark.parametrize("arm", ARMS)
    @pytest.mark.parametrize("task", TASKS)
    @pytest.mark.parametrize("strings", [1, 3])
    def test_losses_and_gradients_are_those_of_autograd_on_whole_strings(self, task, arm, strings):
        lengths = (10, 30) if task == "first" else (10, 10)
        shape = SHAPES[task]
        networks = [perturbed(task, arm, seed, length) for seed, length in enumerate(lengths)]
        keys = [length + 1 for length in lengths]
        stack = Stack(shape, scale_of(arm), keys, stacked(networks))
        bits = [training_strings(task, seed, length, 0, strings) for seed, length in enumerate(lengths)]
        losses = stack.losses_and_gradients(batch(task, bits, 16, torch.float64), stack.factors(keys))
        for place, (weights, length) in enumerate(zip(networks, lengths, strict=True)):
            for value in weights.values():
                value.requires_grad_(True)
            expected = network_of(task, arm, length).losses(weights, bits[place])
            expected.sum().backward()
            torch.testing.assert_close(losses[place], expected.detach(), rtol=0, atol=1e-12)
            for name, value in weights.items():
                found = stack.gradients.by_name[name][place]
                torch.testing.assert_close(found, value.grad.view(found.shape), rtol=0, atol=1e-12, msg=name)

    @pytest.mark.parametrize("length", [2, 63, 1000])
    def test_a_string_of_any_length_is_answered_as_whole_strings_are(self, length):
        for arm in ARMS:
            weights = perturbed("first", arm, 3, 10)
            stack = Stack(SHAPES["first"], scale_of(arm), [11], stacked([weights]))
            bits = test_strings("first", 0, length, 4)
            losses, right = stack.losses(batch("first", [bits], 16, torch.float64), stack.factors([length + 1]))
            expected = network_of("first", arm, 10).losses(weights, bits)
            torch.testing.assert_close(losses[0], expected, rtol=0, atol=1e-11)
            assert right[0].tolist() == (expected < math.log(2)).tolist()

    @pytest.mark.parametrize("task", TASKS)
    @pytest.mark.parametrize("arm", ["attention_o", "acl2022_on_query_input", "ssmax"])
    def test_a_training_is_that_of_a_plain_loop(self, task, arm):
        place = Place(20, 1)
        for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
            trainer = Trainer(task, [Place(20, 0), place], scale_of(arm), 3e-4, dtype)
            losses = torch.cat([trainer.epoch(number, 40) for number in range(2)], dim=1)[1]
            _, expected = train_alone(network_of(task, arm, 20), SHAPES[task], 1, 20, 2, 40, 3e-4, dtype)
            assert max(abs(a - b) for a, b in zip(losses.tolist(), expected, strict=True)) < tolerance

    @pytest.mark.parametrize("task", TASKS)
    def test_the_bits_of_a_network_do_not_depend_on_what_is_trained_beside_it(self, task):
        lengths = (10, 30, 100) if task == "first" else (20,)
        places = [Place(length, seed) for length in lengths for seed in range(12)]
        for arm in ("attention_o", "acl2022_on_query_input", "ssmax"):
            whole = Trainer(task, places, scale_of(arm), 3e-4)
            losses = whole.epoch(0, 40)
            rows = {row.place: row for row in Test(whole, 50, 100).rows(1)}
            for chosen in ([7], [3, 11], list(range(len(places)))[::-1]):
                part = Trainer(task, [places[place] for place in chosen], scale_of(arm), 3e-4)
                assert torch.equal(part.epoch(0, 40), losses[chosen])
                assert all(torch.equal(value, whole.weights[name][chosen]) for name, value in part.weights.items())
                assert all(rows[row.place] == row for row in Test(part, 50, 100).rows(1))

    def test_all_arms_of_a_seed_start_alike(self):
        first, *others = [Trainer("first", [Place(10, 5)], scale_of(arm), 3e-4).weights for arm in ARMS]
        assert all(torch.equal(other[name], value) for other in others for name, value in first.items())

    def test_training_finds_first(self):
        trainer = Trainer("first", [Place(10, seed) for seed in range(4)], scale_of("acl2022_on_query_input"), 3e-3)
        losses = torch.cat([trainer.epoch(number, 100) for number in range(8)], dim=1)
        assert losses[:, :100].mean() > 0.5
        # With so large a learning rate some seeds stay where they are.
        assert losses[:, -100:].mean(dim=1).min() < 0.05


class TestScales:
    @pytest.mark.parametrize(
        ("arm", "words"),
        [
            ({"attention": "log_position"}, "a factor for every position"),
            ({"attention": "ssmax", "scales": "query_input"}, "learns its factor"),
            ({"attention": "acl2021"}, "did you mean acl2022"),
            ({"attention": {"name": "attention_e", "base": 1}}, "base of attention_e"),
        ],
    )
    def test_what_is_no_scale_is_refused_before_any_job(self, arm, words):
        with pytest.raises(UserError, match=words):
            parse_config({**MINIMAL, "first": {"arms": {"a": arm}}}, "here")

    def test_every_registered_attention_is_either_refused_or_trains(self):
        for name in registered():
            try:
                scale = make_scale(FormalArm(attention=name), (10,), (100,), heads=1, head_size=16)
            except UserError:
                continue
            losses = Trainer("first", [Place(10, 0)], scale, 3e-4).epoch(0, 3)
            assert torch.isfinite(losses).all(), name

    @pytest.mark.parametrize("task", TASKS)
    @pytest.mark.parametrize(
        ("body", "words"),
        [
            ("def factor(self, c): raise ZeroDivisionError('none')", "fails on a small example: ZeroDivisionError"),
            ("def factor(self, c): return c.n_B / (c.n_B < 500)", "factor of NAME returns numbers that are not finite"),
            ("def factor(self, c): return c.n_B / (abs(c.n_B - 11) > 0)", "has no factor that is finite in float32"),
            ("def factor(self, c): return c.n_B * 1e38", "has no factor that is finite in float32"),
            ("def factor(self, c): return 0.25", "factor of NAME must return a tensor"),
            ("def factor(self, c): return torch.rand_like(c.n_B)", "other numbers when asked twice"),
            ("def check(self, **_): raise TypeError('no')", "fails on a small example: TypeError: no"),
            ("def queries(self, q, c): return q[7]", "fails on a small example: IndexError"),
            # The trainer would leave these out or work with other numbers, without a word.
            ("def queries(self, q, c): return 5 * q", "does more with queries than"),
            ("def queries(self, q, c): return q * torch.log(c.n_B)[:, None, None, None].to(q.dtype)", "than multiply"),
            ("def queries(self, q, c): return q / q.norm(dim=-1, keepdim=True)", "does more with queries than"),
            (
                LEARNED
                + "return q * (c.learned['a'][:, None, None] * torch.log(c.n_B)[:, None, None, None]).to(q.dtype)",
                "than multiply",
            ),
            (LEARNED + "return q * torch.softmax(c.learned['a'], 0)[:, None, None].to(q.dtype)", "than multiplying"),
            (LEARNED + "return q", "which no gradient reaches"),
        ],
    )
    def test_own_modules_that_fail_or_do_more_than_scale_are_refused_in_one_sentence(self, task, body, words, tmp_path):
        name = f"own_{zlib.crc32(f'{task} {body}'.encode())}"
        path = tmp_path / f"{name}.py"
        path.write_text(OWN.format(name=name, body=body), encoding="utf-8")
        section = {"arms": {"a": {"attention": {"name": name, "module": str(path)}}}, "train_lengths": (10, 30)}
        with pytest.raises(UserError, match=words.replace("NAME", name)) as caught:
            parse_config({**MINIMAL, task: {**section, "test_lengths": (30, 1000)}}, "here")
        assert f"{task}.arms.a.attention" in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_what_all_heads_learn_together_is_no_scale_where_there_are_two(self, tmp_path):
        path = tmp_path / "together.py"
        body = LEARNED.replace("(heads)", "(1)") + "return q * c.learned['a'][:, None, None].to(q.dtype)"
        path.write_text(OWN.format(name="together", body=body), encoding="utf-8")
        section = {"arms": {"a": {"attention": {"name": "together", "module": str(path)}}}}
        assert parse_config({**MINIMAL, "first": section}, "here").first is not None
        with pytest.raises(UserError, match="together must learn one number per head"):
            parse_config({**MINIMAL, "parity": section}, "here")


class TestExactNetworks:
    @pytest.mark.parametrize("layer_norm", [False, True])
    @pytest.mark.parametrize("task", TASKS)
    def test_they_are_right_on_every_string_of_up_to_twelve_bits(self, task, layer_norm):
        network, weights = hand_built(task, layer_norm=layer_norm)
        for length in range(1, 13):
            bits = np.array(list(itertools.product((0, 1), repeat=length)), dtype=np.uint8)
            logits = network.logits(weights, bits).numpy()
            assert (logits * answers(task, bits) > 0).all(), length

    @pytest.mark.parametrize("layer_norm", [False, True])
    @pytest.mark.parametrize("task", TASKS)
    def test_they_are_right_on_long_strings(self, task, layer_norm):
        network, weights = hand_built(task, layer_norm=layer_norm)
        for length, count in ((99, 50), (1000, 10), (3001, 2), (10_000, 1)):
            for bits in test_strings(task, 1, length, count):
                logit = float(network.logits(weights, bits[None])[0])
                assert logit * int(answers(task, bits)) > 0, length

    @pytest.mark.parametrize("task", TASKS)
    def test_without_layer_norm_they_end_as_a_coin_and_with_it_they_are_certain(self, task):
        off = [measure(task, length, layer_norm=False).loss for length in (2, 10, 100, 400)]
        assert off == sorted(off)
        assert off[0] < 0.66
        assert math.log(2) - 0.002 < off[-1] < math.log(2)
        assert all(measure(task, length, layer_norm=True).loss < 1e-4 for length in (2, 10, 100, 400))

    def test_an_epsilon_would_undo_what_layer_norm_does_for_parity(self):
        network, weights = hand_built("parity", layer_norm=True)
        with_epsilon = Network("parity", 2, 2, network.scale, 2, 1e-5)
        bits = test_strings("parity", 0, 1000, 5)
        assert network.losses(weights, bits).max() < 1e-4
        assert with_epsilon.losses(weights, bits).min() > 0.5

    def test_the_stage_writes_both_kinds_at_every_length(self, tmp_path):
        write_exact(ExactSettings(task="parity", lengths=(2, 20)), tmp_path / "exact.csv")
        table = pd.read_csv(tmp_path / "exact.csv")
        assert list(table[["layer_norm", "length"]].itertuples(index=False, name=None)) == [
            ("off", 2), ("off", 20), ("on", 2), ("on", 20),
        ]  # fmt: skip
        assert (table["accuracy"] == 1).all()


MINIMAL = {"name": "a", "arms": {"a": {"attention": "attention_o"}}}


def settings_of(task, arm, **given):
    section = {"seeds": [0, 1], "train_lengths": [10, 20], "test_lengths": [20, 50], "epochs": 5, "test_every": 2,
               "steps_per_epoch": 10, "test_strings": 100, **given}  # fmt: skip
    config = parse_config({**MINIMAL, task: section}, "here")
    return config.formal[task], config.formal_settings(task, arm)


class TestStages:
    @pytest.mark.parametrize("task", TASKS)
    def test_a_training_leaves_one_row_per_network_test_length_and_epoch(self, task, tmp_path):
        _, settings = settings_of(task, "attention_o")
        train_arm(settings, tmp_path / "attention_o.csv")
        text = (tmp_path / "attention_o.csv").read_text(encoding="utf-8")
        assert text.splitlines()[0] == "arm,train_length,seed,test_length,epoch,accuracy,loss" == ",".join(COLUMNS)
        table = pd.read_csv(tmp_path / "attention_o.csv")
        wanted = [
            (length, seed, test, epoch)
            for length in (10, 20)
            for seed in (0, 1)
            for test in sorted({length, 20, 50})
            for epoch in (2, 4, 5)
        ]
        keys = ["train_length", "seed", "test_length", "epoch"]
        assert list(table[keys].itertuples(index=False, name=None)) == wanted
        assert ((100 * table["accuracy"]).round(6) % 1 == 0).all()
        other = FormalSettings(**{**dict(settings), "seeds": (1,)})
        train_arm(other, tmp_path / "part.csv")
        rows = [line for line in text.splitlines() if line.split(",")[2] == "1"]
        assert (tmp_path / "part.csv").read_text(encoding="utf-8").splitlines()[1:] == rows

    def test_arms_come_together_and_are_checked(self, tmp_path):
        arms = {"attention_o": {"attention": "attention_o"}, "acl2022": {"attention": "acl2022"}}
        section, _ = settings_of("first", "acl2022", arms=arms)
        files = [tmp_path / f"{arm}.csv" for arm in arms]
        for arm, path in zip(arms, files, strict=True):
            train_arm(settings_of("first", arm, arms=arms)[1], path)
        collect_arms(files, tmp_path / "first.csv")
        table = read_complete(tmp_path / "first.csv", section)
        assert list(table["arm"].unique()) == ["attention_o", "acl2022"]
        with pytest.raises(UserError, match="the same arm"):
            collect_arms([files[0], files[0]], tmp_path / "twice.csv")
        collect_arms(files[:1], tmp_path / "first.csv")
        lacking = r"first.csv lacks arm acl2022, train_length 10, seed 0.*delete it and .*/formal/first/acl2022.csv and"
        with pytest.raises(UserError, match=lacking):
            read_complete(tmp_path / "first.csv", section)

    def test_an_arm_whose_table_was_cut_in_a_number_is_refused(self, tmp_path):
        train_arm(settings_of("first", "attention_o")[1], tmp_path / "attention_o.csv")
        text = (tmp_path / "attention_o.csv").read_text(encoding="utf-8")
        (tmp_path / "attention_o.csv").write_text(text[:-3], encoding="utf-8")
        with pytest.raises(UserError, match=r"attention_o.csv is cut short; delete it"):
            collect_arms([tmp_path / "attention_o.csv"], tmp_path / "first.csv")

    def test_the_order_of_seeds_makes_no_training_due(self):
        assert settings_of("first", "ssmax", seeds=[4, 1])[1] == settings_of("first", "ssmax", seeds=[1, 4])[1]

    @pytest.mark.parametrize(
        ("key", "value"),
        [("epochs", 0), ("test_every", 0), ("seeds", []), ("train_lengths", [1]), ("test_lengths", [])],
    )
    def test_settings_given_by_hand_are_checked_too(self, key, value):
        given = {**settings_of("first", "ssmax")[1].model_dump(mode="json"), key: value}
        with pytest.raises(ValidationError, match=key):
            FormalSettings.model_validate_json(json.dumps(given))

    def test_a_loss_that_is_not_finite_ends_the_training_and_leaves_no_table(self, tmp_path):
        arms = {"a": {"attention": {"name": "attention_e_kappa", "kappa": 1e38}}}
        _, settings = settings_of("first", "a", arms=arms, learning_rate=0.5)
        with pytest.raises(UserError, match=r"loss of a on first at 10 bits is not finite in epoch 1 .*seed 0.*lower"):
            train_arm(settings, tmp_path / "a.csv")
        assert not list(tmp_path.iterdir())

    def test_long_strings_of_parity_are_tested_in_parts_that_fit_into_memory(self):
        trainer = Trainer("parity", [Place(10, 0), Place(10, 1)], scale_of("attention_o"), 3e-4, torch.float64)
        test = Test(trainer, 150, 100)
        parts = [batch.symbols_STKC.shape for batch in test._batches]
        assert all(strings * rows**2 <= 2**20 for _, strings, rows, _ in parts)
        assert sum(strings for _, strings, _, _ in parts) == 100
        for row in test.rows(1):
            weights = {name: value[row.place.seed] for name, value in trainer.weights.items()}
            network, bits = network_of("parity", "attention_o", 10), test_strings("parity", row.place.seed, 150, 100)
            with torch.inference_mode():
                losses = torch.cat([network.losses(weights, bits[place : place + 1]) for place in range(100)])
            assert row.loss == pytest.approx(float(losses.mean()), abs=1e-9)
        assert Test(trainer, 40, 150)._batches[0].symbols_STKC.shape[1] == 100

    def test_a_training_whose_workflow_was_killed_stops_and_writes_nothing(self, tmp_path):
        """Its settings may be outdated when it ends, and it would write over a newer table."""
        _, settings = settings_of("first", "attention_o", epochs=100_000)
        code = (
            "import os, subprocess, sys, time\n"
            "child = subprocess.Popen([sys.executable, '-m', 'attnscale.cli', 'train-formal', *sys.argv[2:]])\n"
            "print(child.pid, flush=True)\n"
            "while not open(sys.argv[1]).read(): time.sleep(0.01)\n"
            "os._exit(0)\n"
        )
        arguments = ["--settings", settings.canonical(), "--output", str(tmp_path / "a.csv"), "--stop-with-parent"]
        with (tmp_path / "err").open("w") as err:
            parent = subprocess.run(
                [sys.executable, "-c", code, str(tmp_path / "err"), *arguments],
                stdout=subprocess.PIPE, stderr=err, text=True, timeout=120,
            )  # fmt: skip
        pid = int(parent.stdout.split()[0])
        deadline = time.monotonic() + 60
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not Path(f"/proc/{pid}").exists()
        assert "stopped by the end of the workflow" in (tmp_path / "err").read_text(encoding="utf-8")
        assert [path.name for path in tmp_path.iterdir()] == ["err"]


class TestConfiguration:
    def test_a_run_without_them_is_written_as_before_there_were_any(self):
        config = parse_config(MINIMAL, "here")
        assert config.formal == {}
        assert "first" not in config.canonical()
        assert "parity" not in config.canonical()
        assert parse_config(config.model_dump(mode="json"), "again") == config

    def test_an_empty_section_is_the_whole_grid_of_the_paper(self):
        config = parse_config({**MINIMAL, "first": {}, "parity": {}}, "here")
        assert parse_config(config.model_dump(mode="json"), "again") == config
        first = config.formal["first"]
        assert (len(first.seeds), first.train_lengths, first.epochs) == (20, (10, 30, 100, 300), 1000)
        assert list(first.arms) == ARMS
        assert len(config.formal["parity"].seeds) == 10

    @pytest.mark.parametrize(
        ("section", "words"),
        [
            ({"train_lengths": [30, 10]}, "must rise"),
            ({"train_lengths": [1]}, "between 2 and 100000"),
            ({"seeds": [3, 3]}, "a seed twice"),
            ({"epoch": 3}, "did you mean epochs"),
            ({"test_strings": 10}, "at least 100"),
        ],
    )
    def test_a_bad_section_gets_one_sentence(self, section, words):
        with pytest.raises(UserError, match=words):
            parse_config({**MINIMAL, "first": section}, "here")

    @pytest.mark.parametrize("key", ["train_lengths", "test_lengths"])
    def test_strings_of_parity_whose_attention_fits_into_no_memory_are_refused(self, key):
        assert parse_config({**MINIMAL, "parity": {key: [1000]}}, "here").parity is not None
        with pytest.raises(UserError, match=rf"parity.{key}: 1001 is above 1000"):
            parse_config({**MINIMAL, "parity": {key: [40, 1001]}}, "here")
