"""``heliograph store``: inspect, verify and rescue a data directory that no broker uses."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from heliograph_api.tables import new_table
from heliograph_api.values.readable import readable_size

from heliograph_broker.cli.base.shared_options import CliError, console, format_count, usage_error

if TYPE_CHECKING:
    from heliograph_broker.messaging.compaction.claims import Claims
    from heliograph_broker.storage.copies.inspection import Contents
    from heliograph_broker.storage.copies.salvage import Salvage

store_app = typer.Typer(
    help="Inspect, verify and rescue a data directory that no broker uses.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="A broker's --data-dir; stop that broker first.")]
Ledgers = Annotated[list[int], typer.Argument(metavar="LEDGER...", help="Ids, as 'heliograph store check' shows.")]


@store_app.command()
def check(directory: Directory) -> None:
    """List the content of a data directory and its problems, without changing it.

    It checks that FORMAT, metadata and segments belong to the same store, that every ledger that a topic refers to
    exists, and that a topic refers to every ledger. To verify the messages, use 'heliograph store scrub'.

    Exit code: 0 no problem, 1 problems (one line each: the problem, its consequence, the remedy), 2 the directory
    cannot be read.

    \b
    Examples:
      heliograph store check heliograph-data
    """
    from heliograph_broker.messaging.compaction.offline_check import check as check_contents

    with _inspected(directory) as (contents, claims):
        findings = check_contents(contents, claims)
        _print_summary(contents, claims)
    for finding in findings:
        print(f"- {finding}")
    print(f"{directory}: {len(findings)} found" if findings else f"{directory}: nothing is wrong")
    if findings:
        raise typer.Exit(1)


@store_app.command()
def formats(
    reads: Annotated[
        str | None, typer.Option("--reads", metavar="FORMAT", help="Fail unless this one is among them.")
    ] = None,
) -> None:
    """List the formats of data directories that this version reads, one per line, as in the file FORMAT.

    Run it with a new version before an upgrade: a broker that cannot read its data directory does not start.

    Exit code: 0, or 1 if the format of --reads is not among them.

    \b
    Examples:
      heliograph store formats
      heliograph store formats --reads "heliograph 3"
    """
    from heliograph_broker.storage.disk.identity import known_formats

    known = known_formats()
    for each in known:
        print(each)
    if reads is not None and reads not in known:
        raise CliError(f"this version does not read format '{reads}'; it reads {', '.join(known)}")


@store_app.command()
def scrub(
    directory: Directory,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="SIZE", help="Read at most this much per second, such as 50M.")
    ] = None,
) -> None:
    """Verify the checksums of every stored message and metadata record, without changing anything.

    It prints every damaged range of entries with its segment, ledger and topic. Messages written by versions without
    checksums are only checked for their sizes; a running broker adds checksums when it rewrites them.

    Exit code: 0 no damage, 1 damage was found, 2 the directory cannot be read.

    \b
    Examples:
      heliograph store scrub heliograph-data
      heliograph store scrub heliograph-data --rate 50M
    """
    from heliograph_api.values.sizes import parse_size

    from heliograph_broker.messaging.log.unreadable_records import readable_key
    from heliograph_broker.storage.base.damage import LostRange

    try:
        a_second = parse_size(rate) if rate is not None else 0
    except ValueError as error:
        usage_error(f"--rate {rate!r}: {error}")
    if rate is not None and a_second <= 0:
        usage_error(f"--rate {rate!r} should be more than 0, as in 50M")
    damaged = verified = 0
    with _inspected(directory) as (contents, claims):
        with _progress("verifying", sum(file.size for file in contents.segments)) as advance:
            due = time.monotonic()
            for file in contents.segments:
                name = file.path.relative_to(directory)
                if file.problem:
                    damaged += 1
                    print(f"- {name}: {file.problem}; 'heliograph store salvage' can search it for readable messages")
                    advance(file.size)
                    continue
                done = 0
                for found in file.verify():
                    if isinstance(found, LostRange):
                        damaged += 1
                        whose = _whose(claims, found.ledger_id, found.last)
                        entries = f"entries {found.first} to {found.last} of ledger {found.ledger_id}"
                        print(f"- {name}: {entries} ({whose}): {found.reason}")
                        continue
                    done += found
                    advance(found)
                    if a_second:
                        due = max(due, time.monotonic() - 1) + found / a_second
                        time.sleep(max(0.0, due - time.monotonic()))
                verified += done
                advance(file.size - done)
        for key, reason in claims.unreadable.items():
            damaged += 1
            print(f"- metadata.lmdb: the record {readable_key(key)} cannot be read ({reason})")
        if contents.metadata_problem:
            damaged += 1
            print(f"- metadata.lmdb: {contents.metadata_problem}; see 'heliograph store check {directory}'")
    files = f"{readable_size(verified)} bytes in {len(contents.segments)} segments verified"
    print(f"{directory}: {files}, {f'{damaged} damaged' if damaged else 'nothing is damaged'}")
    if damaged:
        raise typer.Exit(1)


@store_app.command()
def salvage(
    directory: Directory,
    to: Annotated[Path, typer.Option("--to", metavar="NEWDIR", help="A new or empty directory to write to.")],
    adopt_all: Annotated[
        bool,
        typer.Option(
            "--adopt", help="Turn ledgers that no topic refers to into topics, instead of keeping them in quarantine."
        ),
    ] = False,
) -> None:
    """Copy everything readable to a new data directory, on which a broker can start. DIR is never changed.

    It verifies the checksum of every message and prints the ranges that cannot be read. It also searches segments
    that a broker has set aside, and the pages behind damaged ones. If metadata.lmdb is lost, topics and subscriptions
    are unknown: each ledger becomes a topic persistent://public/salvaged/ledger-<id>, which keeps all messages and
    which any client can read. If only a part of it is lost, the known topics keep all messages until you set their
    retention again. A record that cannot be decoded is printed and kept aside; its replacement deletes nothing.

    Exit code: 0 everything was readable, 1 NEWDIR is incomplete or could not be written, 2 DIR cannot be read.

    \b
    Examples:
      heliograph store salvage heliograph-data --to rescued
      heliograph standalone --data-dir rescued
    """
    from heliograph_broker.storage.copies.salvage import Salvage, SalvageError

    inside, outside = to.resolve(), directory.resolve()
    if inside == outside or outside in inside.parents:
        usage_error(f"--to {to} is inside {directory}, which is never changed; give a directory outside it")
    with _inspected(directory) as (contents, claims):
        if contents.format is None and (contents.format_text or "").startswith("heliograph "):
            _unreadable(f"{directory} has format '{contents.format_text}'; use the version of Heliograph that wrote it")
        own = [file for file in [*contents.segments, *contents.spare] if not contents.is_foreign(file)]
        others = [file for file in contents.segments if contents.is_foreign(file)]
        try:
            salvaging = Salvage(own, others)
            try:
                complete = _salvage(salvaging, contents, claims, to, adopt_all=adopt_all)
            finally:
                salvaging.close()
        except (SalvageError, OSError) as error:
            raise CliError(str(error)) from error
    if not complete:
        raise typer.Exit(1)


@store_app.command()
def adopt(directory: Directory, ledgers: Ledgers) -> None:
    """Turn ledgers that no topic refers to into topics persistent://public/salvaged/ledger-<id>.

    The topics exist after the next start of the broker, and keep all messages.

    \b
    Examples:
      heliograph store check heliograph-data
      heliograph store adopt heliograph-data 4711
    """
    from heliograph_broker.clock import SystemClock
    from heliograph_broker.messaging.compaction.claims import adoption, topic_of
    from heliograph_broker.storage.base.damage import DamagedEntries

    now_ms = SystemClock().now_ms()

    def adopted(contents: Contents, ledger_id: int, added: dict[bytes, bytes]) -> dict[bytes, bytes]:
        try:
            header, frame = contents.beginning(ledger_id)
        except DamagedEntries as error:
            raise CliError(f"{error}; use 'heliograph store salvage --adopt'") from error
        records = adoption(ledger_id, header, frame, contents.records | added, now_ms)
        if records is None:
            raise CliError(f"ledger {ledger_id} is the result of a compaction, which cannot become a topic")
        return records

    _change_quarantined(directory, ledgers, adopted)
    for ledger_id in ledgers:
        print(topic_of(ledger_id))


@store_app.command()
def drop(directory: Directory, ledgers: Ledgers) -> None:
    """Delete ledgers that no topic refers to. The next start of the broker deletes their messages for good.

    \b
    Examples:
      heliograph store check heliograph-data
      heliograph store drop heliograph-data 4711
    """
    from heliograph_broker.storage.base.tombstones import Tombstone

    def dropped(_contents: Contents, ledger_id: int, _added: dict[bytes, bytes]) -> dict[bytes, bytes]:
        tombstone = Tombstone(ledger_id)
        return {tombstone.record_key: tombstone.encode_record(0)}

    _change_quarantined(directory, ledgers, dropped)
    print(f"{directory}: {len(set(ledgers))} of its ledgers are deleted at the next start of the broker")


def _salvage(salvaging: Salvage, contents: Contents, claims: Claims, to: Path, *, adopt_all: bool) -> bool:
    """Salvage, print the result, and return whether everything was readable."""
    from heliograph_broker.clock import SystemClock
    from heliograph_broker.messaging.compaction.claims import Claims, adoption, keep_everything, topic_of
    from heliograph_broker.messaging.compaction.offline_check import gaps, lost
    from heliograph_broker.messaging.log.unreadable_records import contain, readable_key
    from heliograph_broker.storage.disk.identity import Identity

    with _progress("searching", salvaging.total_bytes) as advance:
        found = salvaging.search(advance)
    problems: list[str] = []
    records, why = _records(contents)
    if why:
        problems.append(f"metadata.lmdb: {why}")
        records = keep_everything(records)
    now_ms = SystemClock().now_ms()
    unread, aside, instead = contain(records, now_ms)
    problems += [f"the record {readable_key(each.key)} is kept aside: {each.reason}" for each in unread]
    records = {key: value for key, value in (records | instead).items() if value is not None} | aside
    claims = Claims(records)
    adopted: list[int] = []
    for ledger_id, ledger in found.items():
        if ledger_id in claims.ledgers or ledger_id in claims.tombstones or not (why or adopt_all):
            continue
        added = adoption(ledger_id, ledger.first, ledger.opening, records, now_ms)
        if added is not None:
            adopted.append(ledger_id)
            records |= added
    kept = [ledger_id for ledger_id in found if ledger_id not in claims.tombstones or ledger_id in claims.ledgers]
    size = sum(found[ledger_id].size for ledger_id in kept)
    ranges = {ledger_id: found[ledger_id].ranges for ledger_id in kept}
    expected = contents.expected()
    unreadable: list[tuple[int, int, int]] = []
    for ledger_id, there in ranges.items():
        last = max(end for _, end in [*expected.get(ledger_id, ()), *there])
        unreadable += [(ledger_id, *gap) for gap in gaps(there, there[0][0], last)]
    wanted = [(ledger_id, first, last, claim.topic) for ledger_id, claim, first, last in lost(ranges, expected, claims)]
    unreadable += [(ledger_id, first, last) for ledger_id, first, last, _ in wanted if ledger_id not in ranges]
    with _progress("writing", size) as advance:
        salvaging.write(to, kept, records, unreadable, Identity(secrets.token_hex(16), now_ms), advance)
    for ledger_id, first, last, topic in wanted:
        problems.append(f"entries {first} to {last} of ledger {ledger_id} ({topic}) cannot be read")
    for ledger_id, first, last in unreadable:
        if ledger_id not in claims.ledgers:
            problems.append(f"entries {first} to {last} of ledger {ledger_id} cannot be read")
    for path, pieces in salvaging.unsound.items():
        problems.append(f"{path.relative_to(contents.path)}: {pieces} damaged pieces were left out")
    for ledger_id in sorted(salvaging.clashing):
        problems.append(f"ledger {ledger_id} is also in a segment of another store; its entries there were left out")
    for problem in problems:
        print(f"- {problem}")
    for ledger_id in adopted:
        print(
            f"+ ledger {ledger_id} is the topic {topic_of(ledger_id)}: {format_count(found[ledger_id].entries)} entries"
        )
    unknown = [ledger_id for ledger_id in kept if ledger_id not in claims.ledgers and ledger_id not in adopted]
    if unknown:
        shown = ", ".join(map(str, unknown[:10]))
        print(
            f"{len(unknown)} ledgers that no topic refers to stay in quarantine ({shown}); see 'heliograph store adopt'"
        )
    entries = sum(found[ledger_id].entries for ledger_id in kept)
    print(
        f"{to}: {format_count(entries)} entries, {readable_size(size)} bytes, {len(kept)} ledgers, "
        f"{len(claims.topics) + len(adopted)} topics; start a broker on it with "
        f"'heliograph standalone --data-dir {to}'"
    )
    return not problems


def _records(contents: Contents) -> tuple[dict[bytes, bytes], str]:
    """Return the records to copy, and the reason why some are missing (empty if none is)."""
    expected_id = "" if contents.format is None else contents.format.store_id
    found = "" if contents.identity is None else contents.identity.store_id
    if (
        expected_id
        and found
        and expected_id != found
        and any(file.store_id == expected_id for file in contents.segments)
    ):
        return {}, f"it belongs to store {found}, the segments to store {expected_id}; its records were not copied"
    if expected_id and not found and not contents.metadata_problem:
        return dict(contents.records), "it has no store id, so its records may be outdated"
    return dict(contents.records), contents.metadata_problem


def _require_quarantined(contents: Contents, claims: Claims, ledgers: list[int]) -> None:
    """Raise :class:`CliError` unless all of the ledgers are in quarantine."""
    from heliograph_broker.messaging.compaction.offline_check import quarantined

    if not contents.has_metadata:
        raise CliError(f"metadata.lmdb: {contents.metadata_problem}; use 'heliograph store salvage'")
    there = {found.ledger_id for found in quarantined(contents, claims)}
    for ledger_id in ledgers:
        if ledger_id in claims.ledgers:
            raise CliError(f"ledger {ledger_id} belongs to {claims.ledgers[ledger_id].topic}")
        if ledger_id not in there:
            known = ", ".join(map(str, sorted(there)[:10])) or "none"
            raise CliError(f"ledger {ledger_id} is not in quarantine; ledgers in quarantine: {known}")


def _change_quarantined(
    directory: Path, ledgers: list[int], records_for: Callable[[Contents, int, dict[bytes, bytes]], dict[bytes, bytes]]
) -> None:
    """Write the records that ``records_for`` returns for each ledger, or none of them.

    ``records_for`` gets the contents, the ledger's id and the records for the ledgers before it. Raises
    :class:`CliError` if a topic names one of the ledgers, if one does not exist, or if the records cannot be written.
    """
    import lmdb

    from heliograph_broker.storage.copies.inspection import put_records

    with _inspected(directory) as (contents, claims):
        _require_quarantined(contents, claims, ledgers)
        records: dict[bytes, bytes] = {}
        for ledger_id in ledgers:
            records |= records_for(contents, ledger_id, records)
        try:
            put_records(contents, records)
        except (lmdb.Error, OSError) as error:
            raise CliError(f"cannot write to {contents.metadata_path}: {error}") from error


def _print_summary(contents: Contents, claims: Claims) -> None:
    from heliograph_broker.messaging.compaction.offline_check import quarantined
    from heliograph_broker.messaging.log.unreadable_records import readable_key

    identity = contents.identity
    expected_id = "missing" if contents.format_text is None else f"'{contents.format_text.splitlines()[0][:40]}'"
    print(f"FORMAT      {expected_id}, store {contents.store_id or 'without an id'}")
    whose = "" if identity is None or identity.store_id == contents.store_id else f", store {identity.store_id}"
    records = f"{format_count(len(claims.topics))} topics, {format_count(len(claims.cursors))} subscriptions"
    print(f"metadata    {readable_size(contents.metadata_bytes)} bytes, {records}{whose}")
    stored = contents.stored()
    unknown = quarantined(contents, claims)
    named = sum(ledger_id in claims.ledgers for ledger_id in stored)
    dying = sum(ledger_id in claims.tombstones for ledger_id in stored)
    print(
        f"ledgers     {format_count(len(stored))} stored: {named} of topics, {dying} being deleted, "
        f"{len(unknown)} in quarantine; {len(claims.ledgers)} named by topics"
    )
    for each in claims.kept_aside:
        print(f"kept aside  {readable_key(each.key)}: {each.reason}")
    table = new_table("SEGMENT", ">SIZE", ">LEDGERS", ">ENTRIES", "STATE")
    for file in [*contents.segments, *contents.spare]:
        entries = sum(run.last - run.first + 1 for run in file.runs.values())
        state = "foreign" if contents.is_foreign(file) else "damaged" if file.problem else "ok"
        if file in contents.spare:
            state = "set aside" if file.problem else "replaced"
        table.add_row(file.path.name, readable_size(file.size), str(len(file.runs)), format_count(entries), state)
    if table.row_count:
        console().print(table)


def _whose(claims: Claims, ledger_id: int, last: int) -> str:
    claim = claims.ledgers.get(ledger_id)
    if claim is None:
        return "being deleted" if ledger_id in claims.tombstones else "no topic"
    if last < claim.first:
        return f"{claim.topic}, already deleted there"
    return f"compacted, of {claim.topic}" if claim.compacted else claim.topic


@contextmanager
def _inspected(directory: Path) -> Iterator[tuple[Contents, Claims]]:
    """Yield the content of a directory while no broker can use it; exit with code 2 if it cannot be read."""
    from heliograph_broker.messaging.compaction.claims import Claims
    from heliograph_broker.storage.copies.inspection import InspectionError, inspect, unused

    try:
        with unused(directory):
            contents = inspect(directory)
            yield contents, Claims(contents.records)
    except InspectionError as error:
        _unreadable(str(error))


def _unreadable(message: str) -> NoReturn:
    print(f"heliograph: {message}", file=sys.stderr)
    raise typer.Exit(2)


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar if stderr is a terminal; yields a function that advances it by a number of bytes."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda more: progress.advance(task, more)
