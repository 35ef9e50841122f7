"""Open loops under construction: a line stands in the loop that it depends on, and is computed once."""

from __future__ import annotations

import torch

from smelt.codegen.scope import Scopes, V, close_parallel


def test_a_text_is_computed_once_where_it_depends_on() -> None:
    scopes = Scopes()
    scopes.open()
    scopes.open()
    first = scopes.define("float", "a0[i]", torch.float32, 1)
    inner = scopes.define("float", "a1[j]", torch.float32, 2)
    assert scopes.define("float", "a0[i]", torch.float32, 1) is first
    assert scopes.define("double", "a0[i]", torch.float64, 1) is not first
    scopes.later("a2[j] = t1;", 2)
    scopes.line("sum += t1;")
    scopes.close(["for j {"], ["}"])
    scopes.close(["for i {"], ["}"])
    assert inner.text == "t1"
    assert scopes.stack[0].lines == [
        "for i {",
        "    const float t0 = a0[i];",
        "    const double t2 = a0[i];",
        "    for j {",
        "        const float t1 = a1[j];",
        "        sum += t1;",
        "        a2[j] = t1;",
        "    }",
        "}",
    ]


def test_values_of_a_loop_are_out_of_scope_after_it() -> None:
    scopes = Scopes()
    scopes.open()
    inside = scopes.define("int", "i + 1", torch.int32, 1)
    scopes.close(["{"], ["}"])
    assert scopes.define("int", "i + 1", torch.int32, 0) is not inside


def test_a_value_under_conditions_holds_wherever_all_of_them_do() -> None:
    scopes = Scopes()
    value = V("t0", torch.float32, 0)
    scopes.remember_under("x", frozenset({"a", "b"}), value)
    assert scopes.find_under("x", frozenset({"a"})) is None
    assert scopes.find_under("x", frozenset({"a", "b", "c"})) is value
    assert scopes.find_under("y", frozenset({"a", "b"})) is None


def test_one_counter_runs_several_loops() -> None:
    scopes = Scopes()
    scopes.open()
    scopes.line("use")
    close_parallel(scopes, [("i", 2), ("j", 3), ("k0", 4)], ["#pragma omp parallel for"], str)
    head = scopes.stack[0].lines
    assert head[:2] == ["#pragma omp parallel for", "for (int64_t k = 0; k < 24; k++) {"]
    decode = [line.strip().removeprefix("const int64_t ").rstrip(";").split(" = ") for line in head[2:5]]
    seen = set()
    for k in range(24):
        values = {name: eval(text.replace("/", "//"), {"k": k}) for name, text in decode}
        seen.add((values["i"], values["j"], values["k0"]))
        assert values["i"] * 12 + values["j"] * 4 + values["k0"] == k
    assert len(seen) == 24
