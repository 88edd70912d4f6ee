-- How many of the requests that were counted together were admitted.

ALTER TABLE rate_windows ADD COLUMN admitted BIGINT NOT NULL DEFAULT 0;
