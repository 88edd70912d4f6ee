-- Whom accounts are at other providers (OpenID Connect), with which people sign in.

CREATE TABLE identities (
    issuer       TEXT NOT NULL,
    subject      TEXT NOT NULL,
    account_id   UUID NOT NULL REFERENCES accounts (id),
    -- The address that the provider knows, to be shown.
    email        TEXT,
    created_at   BIGINT NOT NULL,
    last_used_at BIGINT,
    PRIMARY KEY (issuer, subject)
);
CREATE INDEX identities_by_account ON identities (account_id);

-- From here on, what each engine says in its own way.

ALTER TABLE sign_ins DROP CONSTRAINT sign_ins_method_check;
ALTER TABLE sign_ins ADD CONSTRAINT sign_ins_method_check CHECK (method IN ('link', 'password', 'passkey', 'oidc'));
