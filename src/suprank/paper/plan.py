"""What tables and figures take: their runs, which of these are finished, and where their datasets are."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from suprank.paper.datasets import Found
    from suprank.paper.runs import Training


class PaperPlan(NamedTuple):
    """The `trainings` of each table and figure by its label, the `states` of their runs in the order of the seeds (`finished`,
    `interrupted` or `missing`), and where the `datasets` are, by preset."""

    trainings: Mapping[str, Sequence[Training]]
    states: Mapping[Training, Sequence[str]]
    datasets: Mapping[str, Found]

    def text_cells(self) -> list[list[str]]:
        """A table as text, the head first: a row for each recipe of each table and figure."""
        rows = [["table or figure", "recipe", "seeds", "finished", "to do"]]
        for label, trainings in self.trainings.items():
            for training in trainings:
                seeds, finished = len(self.states[training]), self.states[training].count("finished")
                recipe = " ".join((training.recipe, *training.overrides))
                rows.append([label, recipe, *map(str, (seeds, finished, seeds - finished))])
        return rows

    def sentences(self) -> list[str]:
        """The number of runs to do, where datasets are, and what to do about missing ones."""
        states = [state for states in self.states.values() for state in states]
        to_do = len(states) - states.count("finished")
        runs = "All runs are finished" if states else "Nothing has to be trained"
        if to_do:
            runs = f"{to_do} run{'s' * (to_do != 1)} to do"
            if interrupted := states.count("interrupted"):
                runs += f", of which {interrupted} {'were' if interrupted > 1 else 'was'} interrupted and will be resumed"
            if sum(map(len, self.trainings.values())) > len(self.states):
                runs += "; runs that several tables or figures need are done once"
        found = [f"{preset}: {one.description}." for preset, one in self.datasets.items() if not one.is_missing]
        return [f"{runs}.", *found, *(one.description for one in self.datasets.values() if one.is_missing)]
