"""`scripts/cpus.py`: what it reads of the libraries, which settings it runs, and its table. No suite is run."""

from __future__ import annotations

import pytest
from support.checkout import load_script

AMX = """onednn_verbose,v1,info,oneDNN v3.13.3 (commit b38f97e)
onednn_verbose,v1,info,cpu,isa:Intel AVX10.1 and Intel AMX with bfloat16 and 8-bit integer support
onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:abcd::f0,,,8x3x8x8,12.7
onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx512_core,forward_training,src:f32:a::f0,,,x,1.5
onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx10_1_512_amx,undef,src:bf16::f0,,,64x64:64x64,16.6
MKL_VERBOSE oneMKL 2024.0 Update 2 Product build 20240605 for Intel(R) 64 architecture \
Intel(R) Advanced Vector Extensions 512 (Intel(R) AVX-512), and (Intel(R) AMX), Lnx 2.60GHz lp64 gnu_thread
MKL_VERBOSE SGEMM(N,N,64,64,64,0x7fff,0x55,64) 14.13ms CNR:OFF Dyn:1 FastMM:1 TID:0  NThr:1
torch:AVX512:1
"""
AVX2 = """onednn_verbose,v1,info,cpu,isa:Intel AVX2
MKL_VERBOSE oneMKL 2024.0 Product build 1 for Intel(R) 64 architecture Intel(R) Advanced Vector Extensions 2 \
(Intel(R) AVX2) enabled processors, Lnx 2.60GHz lp64 gnu_thread
torch:AVX2:2
"""


@pytest.fixture
def cpus():
    return load_script("cpus")


def test_instruction_sets_are_read_from_what_the_libraries_print(cpus):
    onednn = "AVX10.1 and Intel AMX with bfloat16 and 8-bit integer support"
    kernels = "(jit:avx512_core, brg_matmul:avx10_1_512_amx)"
    assert cpus.read_probe(AMX) == ("AVX512", f"{onednn} {kernels}", "AVX-512, AMX", "1")
    assert cpus.read_probe(AVX2) == ("AVX2", "AVX2", "AVX2", "2")
    assert cpus.read_probe("torch:DEFAULT:1\n") == ("DEFAULT", "none", "none", "1")


@pytest.fixture
def ran(cpus, monkeypatch):
    """Names of settings that were run, on a CPU with AVX2 alone; one test fails with two threads."""
    names = []
    here = {name: ("DEFAULT", "SSE4.1", "SSE4.2", "1") for name in ("sse",)} | {
        "threads-2": ("AVX2", "AVX2", "AVX2", "2")
    }

    def run_tests(name, arguments):
        names.append((name, *arguments))
        failed = name == "threads-2"
        return cpus.Outcome(10 - failed, int(failed), 2, int(failed))

    usual = ("AVX2", "AVX2", "AVX2", "1")
    monkeypatch.setattr(cpus, "instruction_set", lambda name: cpus.InstructionSet(*here.get(name, usual)))
    monkeypatch.setattr(cpus, "run_tests", run_tests)
    return names


def test_settings_that_change_nothing_on_this_cpu_are_skipped_and_one_failure_is_the_exit_code(cpus, ran, capsys):
    assert cpus.main([]) == 1
    assert ran == [(name, "-n", "auto") for name in ("native", "sse", "threads-2")]
    table = capsys.readouterr().out.splitlines()[-7:]
    assert table[0].split() == ["setting", "instruction", "set", "passed", "failed", "skipped"]
    assert table[1].split()[0] == "native" and table[1].split()[-3:] == ["10", "0", "2"]
    for line, name in ((2, "avx2"), (4, "avx512"), (5, "avx512-bf16")):
        assert table[line].startswith(f"{name} ") and table[line].endswith("not run: the same as native")
    assert table[6].startswith("threads-2 ") and table[6].split()[-3:] == ["9", "1", "2"]


def test_settings_and_arguments_of_pytest_are_chosen(cpus, ran, capsys):
    assert cpus.main(["--settings", "sse,native", "--", "tests/ttm", "-q"]) == 0
    assert ran == [("sse", "tests/ttm", "-q"), ("native", "tests/ttm", "-q")]
    ran.clear()
    assert cpus.main(["--list"]) == 0 and not ran
    printed = capsys.readouterr().out
    assert "sse: torch DEFAULT; oneDNN SSE4.1; MKL SSE4.2; threads 1\n" in printed
    assert printed.count("not run: the same as native") == 3 and "passed  failed  skipped" in printed
    with pytest.raises(SystemExit):
        cpus.main(["--settings", "native,avx3"])
    assert "--settings avx3: not a setting; choose from native, avx2" in capsys.readouterr().err
