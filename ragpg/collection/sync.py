"""How documents come into a collection: planned, ingested, synced with a folder, or in batches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace

import anyio.to_thread

from ragpg import parse
from ragpg.context_batch import BatchContextWriter
from ragpg.database import fetch_rows
from ragpg.errors import CollectionNotFound, InputError, TenantNotFound
from ragpg.handle import CollectionHandle, Known
from ragpg.ingest import STATEMENTS
from ragpg.ingestion import Ingestion, corpus_sync
from ragpg.ingestion.batch_mode import run_batches
from ragpg.ingestion.corpus_sync import SyncReport
from ragpg.ingestion.plan import Plan, Planner
from ragpg.ingestion.sources import parsed
from ragpg.ingestion.tally import IngestProgress
from ragpg.types import Document, DocumentFailure, IngestReport, StrPath


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """The choices of one ingest."""

    recontextualize: bool = False
    batch: bool = False
    wait: bool = True
    seed: bool = False
    progress: Callable[[IngestProgress], None] | None = None


class SyncedCollection(CollectionHandle):
    """The part of a collection's handle that changes what is in it."""

    async def plan(
        self,
        folder: StrPath,
        *,
        recontextualize: bool = False,
        batch: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> Plan:
        """What `sync` would do and cost; writes nothing, makes nothing, calls no vendor.

        `progress` is told how many files have been looked at. Raises InputError.
        """
        root = corpus_sync.folder_root(folder)
        return await self._plan(folder, root, recontextualize, batch, progress)

    async def plan_files(
        self,
        paths: StrPath | Iterable[StrPath],
        *,
        recontextualize: bool = False,
        batch: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> Plan:
        """What `ingest_files` would do and cost; writes nothing, as `plan`."""
        return await self._plan(paths, None, recontextualize, batch, progress)

    async def sync(
        self,
        folder: StrPath,
        *,
        plan: Plan | None = None,
        allow_removals: bool = False,
        recontextualize: bool = False,
        batch: bool = False,
        wait: bool = True,
        progress: Callable[[IngestProgress], None] | None = None,
    ) -> SyncReport:
        """Make the collection mirror a folder: add, update, rename, remove; the rest costs nothing.

        A document that another folder or `ingest` brought is left alone, unless the folder has its
        key. A file that moved keeps its chunks. `plan` is one that `plan` made of this folder just
        now. Raises InputError where more than a tenth of the live documents would be removed and
        `allow_removals` is not set, and what `ingest` raises.
        """
        root = corpus_sync.folder_root(folder)
        if plan is None:
            plan = await self.plan(folder, recontextualize=recontextualize, batch=batch)
        elif plan.root != root:
            raise InputError(f"the plan is of {plan.root}, not of {root}; plan this folder")
        corpus_sync.check_removals(plan, allowed=allow_removals)
        found = await anyio.to_thread.run_sync(parse.find_files, folder)
        await self.create()
        known = await self._load()
        how = How(recontextualize=recontextualize, batch=batch, wait=wait, progress=progress)
        return await corpus_sync.apply(
            plan,
            found,
            transaction=self.transaction,
            collection=known.name,
            collection_id=known.collection_id,
            ingest=lambda chosen: self._ingest(parsed(chosen), how, from_files=True),
        )

    async def resume(
        self,
        *,
        wait: bool = True,
        seed: bool = False,
        progress: Callable[[IngestProgress], None] | None = None,
    ) -> IngestReport:
        """Collect the batches of earlier calls, by any process, and publish what is complete.

        `seed` is for who does not wait but calls again within the hour, as workers do: first
        chunks go ahead all the same, and a later call sends those that read what they cached.
        Raises InputError (the recipe writes no batches), CollectionNotFound, ProviderError.
        """
        known = await self._load()
        writer = self._batch_writer(known)
        how = How(batch=True, wait=wait, seed=seed, progress=progress)
        ingestion = self._ingestion(known, how, from_files=False)
        await self._run_batches(ingestion, writer, how)
        return await self._report(ingestion, known)

    async def _ingest(
        self,
        documents: AsyncIterator[Document | DocumentFailure],
        how: How,
        *,
        from_files: bool,
    ) -> IngestReport:
        await self.create()
        known = await self._load()
        writer = self._batch_writer(known) if how.batch else None
        ingestion = self._ingestion(known, how, from_files=from_files)
        await ingestion.run(documents)
        if writer is not None:
            await self._run_batches(ingestion, writer, how)
        return await self._report(ingestion, known)

    async def _report(self, ingestion: Ingestion, known: Known) -> IngestReport:
        async with self.transaction(pipelined=True) as conn:
            named = {"collection_id": known.collection_id}
            rows = await fetch_rows(conn, STATEMENTS["refused_contexts"], named)
        return replace(ingestion.report(), contexts_refused=rows[0]["chunks"])

    def _ingestion(self, known: Known, how: How, *, from_files: bool) -> Ingestion:
        providers = self._runtime.providers
        return Ingestion(
            transaction=self.transaction,
            collection=known.name,
            collection_id=known.collection_id,
            recipe=known.recipe,
            embedder=providers.embedder(known.recipe, self.name),
            context_writer=providers.context_writer(known.recipe, self.name),
            from_files=from_files,
            progress=how.progress,
            recontextualize=how.recontextualize,
            batched=how.batch,
        )

    def _batch_writer(self, known: Known) -> BatchContextWriter:
        return self._runtime.providers.batch_context_writer(known.recipe, self.name)

    async def _run_batches(
        self, ingestion: Ingestion, writer: BatchContextWriter, how: How
    ) -> None:
        poll_s = self._runtime.settings.batch_poll_s
        seed = how.wait or how.seed
        await run_batches(ingestion, writer, wait=how.wait, seed=seed, poll_s=poll_s)

    async def _plan(
        self,
        paths: StrPath | Iterable[StrPath],
        root: str | None,
        recontextualize: bool,  # noqa: FBT001  as in the public methods
        batch: bool,  # noqa: FBT001
        progress: Callable[[int], None] | None,
    ) -> Plan:
        found = await anyio.to_thread.run_sync(parse.find_files, paths)
        providers = self._runtime.providers
        try:
            known = await self._load()
        except (CollectionNotFound, TenantNotFound):
            if not self._runtime.settings.create_tenants:
                await self._have_tenant()
            recipe, collection_id = providers.default_recipe(), None
        else:
            recipe, collection_id = known.recipe, known.collection_id
        if batch:
            providers.batch_context_writer(recipe, self.name)
        planner = Planner(
            transaction=self.transaction,
            collection_id=collection_id,
            recipe=recipe,
            embedder=providers.embedder(recipe, self.name),
            context_writer=providers.context_writer(recipe, self.name),
            recontextualize=recontextualize,
            batched=batch,
            progress=progress,
        )
        return await planner.plan(found, root=root)
