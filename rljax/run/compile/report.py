"""Print what a program compiled for a target needs and does."""

from __future__ import annotations

from rljax.run.compile.estimate import BOUNDS
from rljax.run.compile.program import CompileReport
from rljax.run.compile.targets import CHIPS, Chip, parse_target


def report_lines(report: CompileReport) -> list[str]:
    """Return the lines that `rljax compile` prints."""
    chip_name, _ = parse_target(report.target)
    chip = CHIPS[chip_name]
    several = report.devices > 1
    used = f"{report.devices} of {report.devices_there} devices" if report.devices_there > 1 else "one device"
    more = "" if report.devices == report.devices_there else f"; --num-devices {report.devices_there} uses all"
    fits = "fits" if report.fits else "DOES NOT FIT"
    each = " per device" if several else ""
    lines = [
        f"{report.target}: one iteration ({report.steps:,} environment steps) on {used}{more}",
        f"compiled in {report.compile_seconds:.1f} s",
        f"memory{each}: {fits}: {_bytes(report.bytes)} of {_bytes(report.memory)}{_usable(chip, report)}",
        *(f"    {name:22}{_bytes(size):>10}" for name, size in report.parts.items()),
        *([f"host memory: {_bytes(report.host)}, and {_bytes(report.bus)} over the bus in an iteration"] if report.host else []),
        f"{'kernels' if chip.platform == 'gpu' else 'operations'} started{each}: {report.launches:,}{_unknown(report)}",
        f"arithmetic{each}: {_scaled(report.flops, 'FLOP')}, products of matrices {_share(report.product_flops, report.flops)}",
        f"bytes moved{each}: {_bytes(report.moved)}",
    ]
    for kind, times, size in report.collectives:
        lines.append(f"{kind}{each}: {times:,} of {_bytes(size)} together")
    if several and not report.collectives:
        lines.append("collectives: none")
    total = report.iteration_seconds
    shares = [(name, report.seconds[name]) for name in BOUNDS if report.seconds[name] >= 0.005 * total]
    lines += [
        f"estimate, not measured: {_duration(total)} an iteration, {_digits(report.steps_per_second, 2)} steps/s, bound by "
        f"{report.bound_by} ({', '.join(f'{name} {_share(seconds, total)}' for name, seconds in shares)})",
        f"    of {_figures(chip)} ({chip.source}), and of assumed least times: {_duration(chip.launch)} for an operation"
        + (f", {_duration(chip.collective)} for a collective" if several else "")
        + (f", {_duration(chip.wait)} for a trip of a loop of unknown length" if report.unknown_loops else ""),
    ]
    return lines


def _figures(chip: Chip) -> str:
    peak = f"{chip.bf16 / 1e12:.0f} TFLOP/s (bf16)" if chip.platform == "tpu" else f"{chip.f32 / 1e12:.0f} TFLOP/s (TF32)"
    return f"{peak}, {chip.bandwidth / 1e9:,.0f} GB/s of memory, {chip.interconnect / 1e9:.0f} GB/s between devices"


def _usable(chip: Chip, report: CompileReport) -> str:
    share = report.memory / chip.memory
    return "" if share > 0.999 else f" ({share:.0%} of the device's; XLA_PYTHON_CLIENT_MEM_FRACTION changes that)"


def _unknown(report: CompileReport) -> str:
    count = report.unknown_loops
    if not count:
        return ""
    return f", and {count} loop{'s' * (count > 1)} whose trips are known only at run time (counted as one trip each)"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "0%"


def _bytes(count: int) -> str:
    return _scaled(count, "B")


def _scaled(number: float, unit: str) -> str:
    """Format a number with three digits and a prefix of its unit: `35.5 MFLOP`."""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:
            return f"{_digits(number / size, 3)} {prefix}{unit}"
    return f"{number:.0f} {unit}"


def _duration(seconds: float) -> str:
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= 0.995 * size:
            return f"{_digits(seconds / size, 2)} {unit}"
    return f"{_digits(seconds * 1e9, 2)} ns"


def _digits(number: float, digits: int) -> str:
    """Format with some digits and no exponent; an estimate has no more than two."""
    rounded = float(f"{number:.{digits}g}")
    return f"{rounded:,.0f}" if rounded >= 10 ** (digits - 1) else f"{rounded:.{digits}g}"
