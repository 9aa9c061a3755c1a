-- The history of one run. Dates are milliseconds since 1970; identifiers are texts as shown in logs.
PRAGMA foreign_keys = OFF;

CREATE TABLE IF NOT EXISTS run (
    id            TEXT PRIMARY KEY,
    seed          INTEGER NOT NULL,
    created_ms    INTEGER NOT NULL,
    config        TEXT NOT NULL
);
-- One row per process that worked on the run; its number fences what earlier ones left behind.
CREATE TABLE IF NOT EXISTS processes (
    epoch         INTEGER PRIMARY KEY,
    pid           INTEGER NOT NULL,
    started_ms    INTEGER NOT NULL,
    ended_ms      INTEGER,
    ending        TEXT
);
-- Up to which of its events each other node, with its incarnation, is written.
CREATE TABLE IF NOT EXISTS sources (
    source        TEXT PRIMARY KEY,
    last          INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS batches (
    batch             TEXT PRIMARY KEY,
    first_position    INTEGER NOT NULL,
    next_position     INTEGER NOT NULL,
    groups            INTEGER NOT NULL,
    samples_per_group INTEGER NOT NULL,
    oldest_version    INTEGER NOT NULL,
    started_ms        INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS groups (
    group_id      TEXT PRIMARY KEY,
    batch         TEXT NOT NULL,
    task          TEXT,
    outcome       TEXT,             -- NULL: not finished; trainable; dropped
    reason        TEXT,
    file          TEXT,
    finished_ms   INTEGER
);
CREATE TABLE IF NOT EXISTS rollouts (
    rollout        TEXT PRIMARY KEY,
    group_id       TEXT NOT NULL,
    epoch          INTEGER NOT NULL,
    task           TEXT NOT NULL,
    state          TEXT NOT NULL,
    issued_ms      INTEGER NOT NULL,
    ended_ms       INTEGER,
    outcome        TEXT,             -- completed, truncated, stale, cancelled, infra_failed
    reward         REAL,
    detail         TEXT,
    turns          INTEGER,
    tokens         INTEGER,
    trained_tokens INTEGER,
    claim_ms       INTEGER,
    set_up_ms      INTEGER,
    generate_ms    INTEGER,
    exec_ms        INTEGER,
    grade_ms       INTEGER,
    trained_step   INTEGER           -- the committed step that trained on it
);
CREATE INDEX IF NOT EXISTS rollouts_of_group ON rollouts (group_id);
CREATE TABLE IF NOT EXISTS turns (
    rollout        TEXT NOT NULL,
    turn           INTEGER NOT NULL,
    engine         TEXT NOT NULL,
    prompt_tokens  INTEGER NOT NULL,
    new_tokens     INTEGER NOT NULL,
    finish         TEXT NOT NULL,
    version        INTEGER,
    generate_ms    INTEGER NOT NULL,
    at_ms          INTEGER NOT NULL,
    PRIMARY KEY (rollout, turn)
);
CREATE TABLE IF NOT EXISTS steps (
    step           INTEGER PRIMARY KEY,
    batch          TEXT,
    checkpoint     TEXT NOT NULL,
    version        TEXT NOT NULL,
    next_position  INTEGER NOT NULL,
    committed_ms   INTEGER NOT NULL,
    metrics        TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS weight_versions (
    version        TEXT PRIMARY KEY,
    number         INTEGER NOT NULL,
    mode           TEXT NOT NULL,
    bytes          INTEGER NOT NULL,
    root_hash      TEXT NOT NULL,
    published_ms   INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS engines (
    engine         TEXT PRIMARY KEY,
    state          TEXT NOT NULL,
    version        TEXT,
    trouble        TEXT,
    at_ms          INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS leases (
    lease          INTEGER PRIMARY KEY,
    epoch          INTEGER NOT NULL,
    rollout        TEXT NOT NULL,
    image          TEXT NOT NULL,
    sandbox        TEXT NOT NULL,
    warm           INTEGER NOT NULL,
    waited_ms      INTEGER NOT NULL,
    claimed_ms     INTEGER NOT NULL,
    claimed_seq    INTEGER NOT NULL,  -- the events' order: dates cannot tell an overlap from a quick hand-over
    ended_ms       INTEGER,
    ended_seq      INTEGER,
    reason         TEXT
);
CREATE TABLE IF NOT EXISTS events (
    seq            INTEGER PRIMARY KEY,
    epoch          INTEGER NOT NULL,
    at_ms          INTEGER NOT NULL,
    event          TEXT NOT NULL,
    body           TEXT NOT NULL
);
-- What an operator holds: rollouts, training.
CREATE TABLE IF NOT EXISTS held (
    what           TEXT PRIMARY KEY,
    since_ms       INTEGER NOT NULL
);
