-- Whether the host is to be stopped: the others take its work, where there are any.

ALTER TABLE hosts ADD COLUMN draining BOOLEAN NOT NULL DEFAULT FALSE;

-- The oldest schema, by the number of its last migration, that a program must know to work on this database. A migration that
-- takes away what earlier versions use raises it.

ALTER TABLE cluster ADD COLUMN schema_min BIGINT NOT NULL DEFAULT 49;
