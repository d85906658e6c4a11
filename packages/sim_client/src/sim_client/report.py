"""What a person sees: progress while a run goes on, and a table at its end."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from sim_client import results
from sim_client.evaluate import RunSummary
from sim_client.results import EpisodeRecord
from sim_client.statistics import Rate


@contextlib.contextmanager
def episode_progress(total: int, console: Console) -> Iterator[Callable[[EpisodeRecord], None]]:
    """Show finished episodes: a bar on a terminal, one plain line per episode elsewhere."""
    seen: list[EpisodeRecord] = []

    def line(record: EpisodeRecord) -> str:
        seen.append(record)
        rate = results.rate_of(seen)
        return (
            f"[{len(seen)}/{total}] {record.task} ep {record.ep_id}: {record.outcome}"
            f"{f' ({record.error})' if record.error else ''}, {record.steps} steps, "
            f"{record.timing_ms.get('episode', 0.0) / 1e3:.1f} s; so far {_show_rate(rate)}"
        )

    if not console.is_terminal:
        yield lambda record: console.print(
            line(record), markup=False, highlight=False, soft_wrap=True
        )
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("episodes", total=total)

        def advance(record: EpisodeRecord) -> None:
            progress.console.print(line(record), markup=False, highlight=False, soft_wrap=True)
            progress.advance(bar)

        yield advance


def print_summary(summary: RunSummary, console: Console) -> None:
    """Print a row per task, the run's digest and where its files are."""
    table = Table("task", "n", "successes", "rate", "95 % interval (Wilson)", "errored")
    tasks = sorted({record.task for record in summary.records})
    rows = [(t, [r for r in summary.records if r.task == t]) for t in tasks]
    if len(tasks) > 1:
        rows.append(("all", summary.records))
    for name, records in rows:
        rate = results.rate_of(records)
        table.add_row(
            name, str(rate.n), str(rate.successes), *_rate_cells(rate), str(len(records) - rate.n)
        )
    console.print(table)
    warned = [record for record in summary.records if record.warnings]
    if warned:
        console.print(
            f"the server warned in {len(warned)} of {len(summary.records)} episodes (all are in "
            f"their records), first: {warned[0].warnings[0]}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    if summary.stopped:
        console.print(f"stopped early: {summary.stopped}", markup=False, soft_wrap=True)
    for text in (
        f"sha256 of outcomes.json: {summary.outcomes_sha256}",
        f"results:  {summary.log_dir / 'results.json'}",
        f"episodes: {summary.log_dir / 'episodes'}",
        f"videos, traces, actions: {summary.log_dir}",
    ):
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def _rate_cells(rate: Rate) -> tuple[str, str]:
    if rate.rate is None or rate.interval_95 is None:
        return "-", "-"
    low, high = rate.interval_95
    return f"{rate.rate:.1%}", f"{low:.1%} to {high:.1%}"


def _show_rate(rate: Rate) -> str:
    if rate.rate is None:
        return "none scored"
    return f"{rate.successes}/{rate.n} = {rate.rate:.0%}"
