-- Digests of the settings of a host that are to be the same at all hosts, as JSON. Null: it runs an earlier version.

ALTER TABLE hosts ADD COLUMN settings TEXT;
