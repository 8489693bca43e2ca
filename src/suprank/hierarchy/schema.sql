-- One project is one file. Times are UTC, ISO 8601. Columns called *_json hold JSON. The primary key of `member` ensures that a
-- label is in exactly one place of a branch; triggers ensure that the log of events only grows.

CREATE TABLE meta (
  key TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Every successful run of a step: its settings, the digest of what it read, its result.
CREATE TABLE step (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  settings_json TEXT NOT NULL,
  inputs TEXT NOT NULL,
  result_json TEXT NOT NULL,
  version TEXT NOT NULL,
  ended TEXT NOT NULL
) STRICT;

-- What is to be labeled, such as landmarks. Ids of different splits are unrelated. A plain list of labels has no items.
CREATE TABLE item (
  id INTEGER PRIMARY KEY,
  split TEXT NOT NULL,
  key TEXT NOT NULL,
  source TEXT NOT NULL,
  line INTEGER NOT NULL,
  UNIQUE (split, key)
) STRICT;

-- The types of an item, best rank first: none, one or several.
CREATE TABLE item_type (
  item INTEGER NOT NULL REFERENCES item,
  position INTEGER NOT NULL,
  text TEXT NOT NULL,
  qid TEXT,
  ended INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (item, position)
) STRICT, WITHOUT ROWID;

-- The code of the reason why an item has no type; an item with a type is not in here.
CREATE TABLE item_untyped (
  item INTEGER PRIMARY KEY REFERENCES item,
  reason TEXT NOT NULL
) STRICT;

-- What Wikidata says about types and the classes above them.
CREATE TABLE type_class (
  qid TEXT PRIMARY KEY,
  description TEXT NOT NULL,
  above_json TEXT NOT NULL -- the classes that it is a subclass of (P279), in order
) STRICT, WITHOUT ROWID;

-- Labels after cleaning: the texts that are clustered and reviewed. `key` is the QID, or else the normalized text.
CREATE TABLE label (
  id INTEGER PRIMARY KEY,
  key TEXT NOT NULL UNIQUE,
  text TEXT NOT NULL,
  qid TEXT,
  description TEXT NOT NULL DEFAULT '',
  weight INTEGER NOT NULL CHECK (weight >= 0),
  state TEXT NOT NULL CHECK (state IN ('active', 'removed')),
  reason TEXT,
  CHECK ((state = 'removed') = (reason IS NOT NULL))
) STRICT;

CREATE TABLE label_spelling (
  label INTEGER NOT NULL REFERENCES label,
  text TEXT NOT NULL,
  items INTEGER NOT NULL,
  PRIMARY KEY (label, text)
) STRICT, WITHOUT ROWID;

-- After cleaning every item is here once, with its label or the reason why it has none.
CREATE TABLE item_label (
  item INTEGER PRIMARY KEY REFERENCES item,
  label INTEGER REFERENCES label,
  reason TEXT,
  CHECK ((label IS NULL) = (reason IS NOT NULL))
) STRICT;
CREATE INDEX item_label_label ON item_label (label);

CREATE TABLE embedding (
  id INTEGER PRIMARY KEY,
  fingerprint TEXT NOT NULL UNIQUE,
  encoder_json TEXT NOT NULL,
  labels TEXT NOT NULL, -- digest of the label keys and texts that were encoded
  dim INTEGER NOT NULL,
  file TEXT NOT NULL -- in the folder `embeddings`
) STRICT;

-- Clusterings never change: a branch stays with the one it started from.
CREATE TABLE clustering (
  id INTEGER PRIMARY KEY,
  embedding INTEGER NOT NULL REFERENCES embedding,
  settings_json TEXT NOT NULL,
  labels TEXT NOT NULL,
  figures_json TEXT NOT NULL,
  made TEXT NOT NULL
) STRICT;

CREATE TABLE cluster (
  clustering INTEGER NOT NULL REFERENCES clustering,
  number INTEGER NOT NULL,
  names_json TEXT NOT NULL, -- suggestions, best first
  tightness REAL,
  stability REAL,
  PRIMARY KEY (clustering, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE cluster_member (
  clustering INTEGER NOT NULL,
  label INTEGER NOT NULL REFERENCES label,
  number INTEGER NOT NULL,
  nearness REAL NOT NULL, -- cosine to the center of its cluster
  margin REAL NOT NULL, -- by how much that exceeds the cosine to the next center
  PRIMARY KEY (clustering, label),
  FOREIGN KEY (clustering, number) REFERENCES cluster
) STRICT, WITHOUT ROWID;
CREATE INDEX cluster_member_number ON cluster_member (clustering, number);

-- Review. Each annotator works on their own branch; `final` is the name of the branch that is exported.
CREATE TABLE branch (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  origin TEXT, -- "anna against ben" if it started from two other branches, to adjudicate what they differ on
  clustering INTEGER REFERENCES clustering,
  token TEXT NOT NULL UNIQUE, -- part of the annotator's link, which stays the same from one start to the next
  last_group INTEGER, -- where the annotator stopped
  next_group INTEGER NOT NULL DEFAULT 1, -- ids of removed groups are not used again
  made TEXT NOT NULL
) STRICT;

-- Level 1 holds labels; a group of level n is under one of level n + 1, or has no parent yet.
CREATE TABLE "group" (
  branch INTEGER NOT NULL REFERENCES branch,
  id INTEGER NOT NULL,
  level INTEGER NOT NULL CHECK (level >= 1),
  name TEXT NOT NULL,
  parent INTEGER,
  named INTEGER NOT NULL DEFAULT 1 CHECK (named IN (0, 1)), -- 0: the name is a suggestion that nobody has accepted
  state TEXT NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'done')),
  note TEXT NOT NULL DEFAULT '',
  cluster INTEGER, -- the cluster it began as
  version INTEGER NOT NULL DEFAULT 0, -- the last event that changed it or what it holds
  PRIMARY KEY (branch, id),
  FOREIGN KEY (branch, parent) REFERENCES "group" DEFERRABLE INITIALLY DEFERRED,
  CHECK (parent IS NOT id)
) STRICT, WITHOUT ROWID;
CREATE INDEX group_parent ON "group" (branch, parent);

CREATE TABLE member (
  branch INTEGER NOT NULL REFERENCES branch,
  label INTEGER NOT NULL REFERENCES label,
  "group" INTEGER,
  reason TEXT, -- why it is excluded
  PRIMARY KEY (branch, label),
  FOREIGN KEY (branch, "group") REFERENCES "group" DEFERRABLE INITIALLY DEFERRED,
  CHECK (("group" IS NULL) = (reason IS NOT NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX member_group ON member (branch, "group");

CREATE TABLE event (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  branch INTEGER NOT NULL REFERENCES branch,
  at TEXT NOT NULL,
  who TEXT NOT NULL,
  act TEXT NOT NULL,
  said TEXT NOT NULL, -- one sentence for people
  changes_json TEXT NOT NULL, -- rows before and after, for undo, redo and replay
  undoes INTEGER REFERENCES event,
  token TEXT, -- of the click: the same one sent twice counts once
  UNIQUE (branch, token)
) STRICT;
CREATE INDEX event_branch ON event (branch, seq, act, undoes);
CREATE TRIGGER event_stays BEFORE UPDATE ON event BEGIN SELECT RAISE(ABORT, 'the log of acts only grows'); END;
CREATE TRIGGER event_remains BEFORE DELETE ON event BEGIN SELECT RAISE(ABORT, 'the log of acts only grows'); END;

-- Labels on which the two branches differed that a branch started from, and what the other one says.
CREATE TABLE doubt (
  branch INTEGER NOT NULL REFERENCES branch,
  label INTEGER NOT NULL REFERENCES label,
  about TEXT NOT NULL,
  PRIMARY KEY (branch, label)
) STRICT, WITHOUT ROWID;

-- A doubtful label is decided once its group is marked done, or it is excluded.
CREATE VIEW open_doubt AS
SELECT doubt.branch, doubt.label, about FROM doubt JOIN member m ON m.branch = doubt.branch AND m.label = doubt.label
JOIN "group" g ON g.branch = m.branch AND g.id = m."group" WHERE g.state = 'open';

CREATE TABLE export (
  id INTEGER PRIMARY KEY,
  branch INTEGER NOT NULL REFERENCES branch,
  at TEXT NOT NULL,
  seq INTEGER NOT NULL, -- the last event that is in it
  files_json TEXT NOT NULL, -- name to sha256
  options_json TEXT NOT NULL,
  overridden_json TEXT NOT NULL -- lint errors that --force overrode
) STRICT;
