// Sphinx's usual weights; pages of the API come after guides, so that a search for "evaluate" finds the guide first.
var Scorer = {
  score: (result) => result[4] - (result[0] === "api" ? 100 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
