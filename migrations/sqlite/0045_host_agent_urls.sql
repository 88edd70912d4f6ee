-- The URL under which agents reach a host. Null where none is named.

ALTER TABLE hosts ADD COLUMN agent_url TEXT;
