-- The part of a number that a transaction writes is its session's. It was the certificate's, so that two transactions with
-- several certificates each could wait for each other.

-- From here on, what each engine says in its own way.

-- SQLite has one writer, and one part.
