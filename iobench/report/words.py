"""The texts of the report that no number changes: how numbers are made, and what the words mean."""

from __future__ import annotations

MADE = (
    "Each probe runs in processes of its own, several launches spread over the run, so that one lucky or unlucky "
    "process does not decide. In each launch a point is warmed up until two windows agree, then sampled until the "
    "interval of the median is narrow enough (converged), the time is used up (budget) or enough samples are "
    "there (max_samples).",
    "Time is what is measured; a rate is the bytes really moved divided by the median time. With several ranks a "
    "sample is the time of the slowest rank.",
    "Every rate is compared with the physical limit of the path its bytes took, found in the topology below. "
    "Data is verified outside the clock. Numbers above the limit and wrong data enter no model and no comparison.",
)

DEFINITIONS = (
    ("median", "Median over launches of each launch's median time of one operation."),
    (
        "95 % interval",
        "Interval that should hold the median of a second run of as many launches: the wider of the order-statistics "
        "interval of all samples and Student's t on the logarithms of the launches' medians, their variance counted "
        "twice (repeatability, ISO 5725). ± is half its width.",
    ),
    ("P95, P99", "Quantiles of all samples together, by linear interpolation; P95 from 20 samples on, P99 from 100."),
    ("n", "Samples / process launches they come from."),
    ("rate", "Bytes moved / median time. GB/s is 1e9 bytes per second; KiB, MiB, GiB are powers of 1024."),
    ("of limit", "Rate as a part of the physical limit of the path."),
    ("ok", "Path proven, data verified, below the limit, undisturbed."),
    ("unproven", "Measured, but nothing proves which way the bytes took."),
    ("emulated", "Ran on emulated hardware: shows that the path works, never how fast anything is."),
    ("suspect", "Measured while something else disturbed the machine."),
    ("impossible", "Above the physical limit: the number is wrong, or the limit is."),
    ("wrong", "The bytes that arrived are not those that were sent."),
    ("skipped, failed", "Not measured: the machine lacks something, or the point ended in an error."),
    ("bytes rule", "How the bytes of one operation were counted."),
    ("leave-one-out error", "Mean relative error of a model at each size when it is fitted without that size."),
)
