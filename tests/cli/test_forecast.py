"""`workbench forecast` on the bundled model."""

import json
from pathlib import Path

from tests.cli.conftest import Workbench
from workbench.cli.failures import Code


def test_json_says_what_each_card_would_hold(workbench: Workbench) -> None:
    done = workbench("forecast", "small", "--json")
    assert done.returncode == Code.DONE, done.stderr
    value = json.loads(done.stdout)
    assert value["source"] == "llama.cpp"
    assert value["fits"] is True
    assert value["n_ctx"] == 512
    assert value["max_n_ctx"] == 8192
    assert [card["layers"] for card in value["cards"]] == [20, 11]
    for card in value["cards"]:
        parts = card["weights_mib"] + card["kv_mib"] + card["compute_mib"] + card["other_mib"]
        assert abs(card["total_mib"] - parts) < 0.1
        assert card["free_mib"] == 600
        assert card["fits"] is True
    assert value["host"]["name"] == "CPU"


def test_options_change_the_draft_and_not_the_document(workbench: Workbench, folder: Path) -> None:
    before = (folder / "layouts" / "small.yaml").read_text()
    done = workbench(
        "forecast", "small", "--tensor-split", "3,1", "--split-mode", "tensor", "--n-ctx", "4096", "--json"
    )
    value = json.loads(done.stdout)
    assert value["split"] == "tensor 3:1"
    assert value["n_ctx"] == 4096
    assert [card["layers"] for card in value["cards"]] == [None, None]
    assert [card["kv_mib"] for card in value["cards"]] == [75.0, 15.0]
    assert (folder / "layouts" / "small.yaml").read_text() == before


def test_an_automatic_split_is_resolved_to_counts(workbench: Workbench) -> None:
    value = json.loads(workbench("forecast", "small", "--tensor-split", "auto", "--json").stdout)
    assert value["split"] == "layer 31:0"
    assert value["fits"] is True


def test_people_read_a_table_and_a_verdict(workbench: Workbench, folder: Path) -> None:
    small = folder / "layouts" / "small.yaml"
    small.write_text(small.read_text().replace("[600MiB, 600MiB]", "[600MiB, 60MiB]"))
    done = workbench("forecast", "small")
    assert done.returncode == Code.DONE
    lines = done.stdout.splitlines()
    assert "llama.cpp's own simulation" in lines[0]
    assert [line.split()[0] for line in lines[1:5]] == ["card", "RPC0", "RPC1", "CPU"]
    assert lines[5].startswith("misses by")
    assert "on card 1" in lines[5]


def test_bad_options_say_what_is_right(workbench: Workbench) -> None:
    for options, says in (
        (("--tensor-split", "3,x"), "write proportions such as 3,1"),
        (("--tensor-split", "1,1,1"), "there are 2 cards"),
        (("--tensor-split=-1,2",), "tensor_split"),
        (("--split-mode", "rows"), "row"),
    ):
        done = workbench("forecast", "small", *options)
        assert done.returncode == Code.WRONG, options
        assert says in done.stderr
        assert "Traceback" not in done.stderr


def test_a_draft_that_cannot_load_names_file_and_key(workbench: Workbench) -> None:
    done = workbench("forecast", "small", "--split-mode", "row", "--tensor-split", "1,1")
    assert done.returncode == Code.WRONG
    assert "small.yaml" in done.stderr
    assert "split_mode" in done.stderr
