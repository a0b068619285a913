"""Small files that cost minutes or gigabytes: refused in one line, in the time that reading them takes."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from ttmbench._util.images import BadImage, open_image
from ttmbench._util.text import Unreadable, parse_yaml
from ttmbench.cli import main
from ttmbench.data.row_files import check_decoded
from ttmbench.errors import DataError


def progressive(scans: int) -> io.BytesIO:
    """A JPEG whose last scan, the refinement of one component, is there again and again."""
    plain = io.BytesIO()
    Image.new("RGB", (2000, 2000), (10, 90, 200)).save(plain, "JPEG", progressive=True)
    content = plain.getvalue()
    last = content.rindex(b"\xff\xda")
    return io.BytesIO(content[:last] + content[last:-2] * scans + b"\xff\xd9")


def test_a_jpeg_of_many_scans():
    with pytest.raises(BadImage, match=r"it has \d{4} scans, more than 100; TTMBENCH_LIMITS=jpeg_scans=N"):
        open_image(progressive(5000))
    assert open_image(progressive(1)).size == (2000, 2000)


@pytest.mark.parametrize("number", ["1" + ":59" * 200_000, "9" * 500_000, "0x" + "f" * 500_000, "1" * 500_000 + ".5"])
def test_a_yaml_number_of_half_a_megabyte(number):
    with pytest.raises(Unreadable, match=r"line 2 has a number of \d+ characters; write a text in quotes"):
        parse_yaml(f"a: 1:30\nb: {number}\n")


def test_yaml_texts_may_be_long():
    assert parse_yaml(f"a: {'long ' * 1000}\nb: '{'9' * 1000}'\nc: 12\n")["c"] == 12


@pytest.fixture
def table(tmp_path):
    """A parquet file of so many rows, in which one image of a megabyte stands again and again."""
    import pyarrow
    import pyarrow.parquet

    def make(rows: int, store_schema: bool = True):
        image = b"\x89PNG" + np.random.RandomState(0).bytes(1_000_000)
        cells = pyarrow.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pyarrow.array([image], pyarrow.binary()))
        columns = {"image": cells, "id": np.arange(rows), "caption": [f"caption {row}" for row in range(rows)]}
        (tmp_path / "data").mkdir()
        path = tmp_path / "data" / "test-00000-of-00001.parquet"
        pyarrow.parquet.write_table(pyarrow.table(columns), path, store_schema=store_schema)
        assert path.stat().st_size < 2_000_000
        return path

    return make


@pytest.mark.parametrize("store_schema", [True, False])
def test_a_parquet_file_that_unpacks_to_gigabytes(table, store_schema):
    path = table(4000, store_schema)
    with pytest.raises(DataError, match=r"bytes and unpacks to more than 2000000000; TTMBENCH_LIMITS=table_bytes=N"):
        check_decoded([path])


def test_honest_tables_are_read(table, tmp_path):
    check_decoded([table(100)])
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 no table")
    check_decoded([broken])  # its reader says what is wrong


def test_a_dataset_of_gigabytes_is_refused_before_the_cache_is_written(table, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TTMBENCH_LIMITS", "table_bytes=5e7")
    path = table(100, store_schema=False)
    task = tmp_path / "big.yaml"
    task.write_text(
        f"task: big\nversion: 1\nsource: {{kind: huggingface, path: {path.parent.parent}, split: test}}\n"
        "group: {shape: [1, 2], id: id, images: [image], captions: [caption, caption], n_groups: 100}\n"
        "metrics: [text_score]\n"
    )
    assert main(["validate", str(task)]) != 0
    captured = capsys.readouterr()
    assert "unpacks to more than 50000000" in captured.out + captured.err
    assert not (tmp_path / "cache").exists()
