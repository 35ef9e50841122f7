"""The 163 models of the benchmark's suites as subjects of the census, in their sizes for a CPU."""

from __future__ import annotations

from smelt.bench.census.examine import Subject
from smelt.bench.suites.entries import suite_workloads
from smelt.bench.workloads import find_workload


def suite_names() -> list[str]:
    """Returns `suite/model` for every entry."""
    return [each.key for each in suite_workloads("all")]


def suite_subject(name: str) -> Subject:
    """Build the model and the batch that the benchmark runs."""
    workload = find_workload(name)
    return Subject(workload.build(), workload.batch(), workload.suite, workload.shape)
