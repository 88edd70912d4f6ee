-- Certificates of the names of http tunnels.

-- A change is of a tunnel, or of a platform domain and its certificate.
ALTER TABLE assignment_changes RENAME COLUMN tunnel_id TO item_id;
-- The port that visitors see; NULL where the node has no HTTPS listener.
ALTER TABLE nodes ADD COLUMN https_port BIGINT;

CREATE TABLE certificates (
    id           UUID NOT NULL PRIMARY KEY,
    -- Whose name it is: a platform domain's, or a tunnel's.
    domain_id    UUID UNIQUE REFERENCES platform_domains (id),
    tunnel_id    UUID REFERENCES tunnels (id) ON DELETE CASCADE,
    -- A wildcard `*.<domain>` is for the domain itself too.
    name         TEXT NOT NULL UNIQUE,
    -- How far the next certificate is; what is served is in `chain`.
    status       TEXT NOT NULL,
    -- Who signs: `local:<SHA-256 of the root certificate>`, or the URL of an ACME directory.
    issuer       TEXT NOT NULL,
    -- PEM, with its key (PKCS #8, sealed) and its end; NULL before the first one.
    chain        TEXT,
    key          BYTEA,
    not_after    BIGINT,
    -- When there is something to do next.
    due_at       BIGINT NOT NULL,
    -- The order of the next certificate, when it was placed, how the name is proved, and the key (sealed).
    order_url    TEXT,
    ordered_at   BIGINT,
    challenge    TEXT,
    new_key      BYTEA,
    -- Failures in a row, and the last one.
    failures     BIGINT NOT NULL,
    error        TEXT,
    CHECK ((domain_id IS NULL) <> (tunnel_id IS NULL))
);

CREATE INDEX certificates_due ON certificates (due_at);
CREATE INDEX certificates_by_tunnel ON certificates (tunnel_id);
CREATE INDEX certificates_by_end ON certificates (not_after);

-- What proves a name to an authority while it looks.
CREATE TABLE acme_challenges (
    certificate_id UUID NOT NULL REFERENCES certificates (id) ON DELETE CASCADE,
    name           TEXT NOT NULL,
    -- `http-01`, `tls-alpn-01` or `dns-01`.
    kind           TEXT NOT NULL,
    token          TEXT NOT NULL,
    -- The key authorization (RFC 8555, section 8.1).
    value          TEXT NOT NULL,
    PRIMARY KEY (certificate_id, token)
);

-- The host's account at each authority; the credentials are sealed.
CREATE TABLE acme_accounts (
    directory   TEXT NOT NULL PRIMARY KEY,
    credentials BYTEA NOT NULL
);

-- The orders of the last hour.
CREATE TABLE acme_orders (
    id        UUID NOT NULL PRIMARY KEY,
    placed_at BIGINT NOT NULL
);
