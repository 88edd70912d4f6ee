//! The names of http tunnels on a node, and what a node needs to serve them.

use std::collections::HashMap;

use culvert_domain::error::Result;
use culvert_domain::local_service::{LocalScheme, ProxyProtocol};
use culvert_domain::port::extra_subdomain;
use culvert_wire::node::{BasicAuth, Route, RouteName};
use uuid::Uuid;

use super::arg::args;
use super::error::DbResult;
use super::read::Read;
use super::row::{Row, readable};
use super::sql::sql;
use super::{Store, Write};

/// Most tunnels that are read at once.
const BATCH: usize = 500;

/// A statement about the http tunnels of the list `$1` on the node `$2`, in the SQL of each engine.
macro_rules! of_tunnels {
    ($select:literal, $rest:literal) => {
        sql!(
            sqlite: concat!(
                $select,
                " WHERE t.protocol = 'http' AND +t.node_id = $2 AND t.id IN (SELECT unhex(value) FROM json_each($1)) ",
                $rest
            ),
            postgres: concat!($select, " WHERE t.protocol = 'http' AND t.node_id = $2 AND t.id = ANY($1) ", $rest)
        )
    };
}

impl Store {
    /// The routes of all http tunnels on a node.
    pub async fn routes(&self, node_id: Uuid) -> Result<Vec<Route>> {
        let sql = sql!("SELECT id FROM tunnels WHERE node_id = $1 AND protocol = 'http'");
        let rows = (&self.db).all(sql, args![node_id]).await?;
        let tunnel_ids = rows.iter().map(|row| row.id("id")).collect::<DbResult<Vec<_>>>()?;
        self.routes_of(node_id, &tunnel_ids).await
    }

    /// The routes of those of these tunnels that are http tunnels on a node.
    pub async fn routes_of(&self, node_id: Uuid, tunnel_ids: &[Uuid]) -> Result<Vec<Route>> {
        let mut all = Vec::new();
        for batch in tunnel_ids.chunks(BATCH) {
            all.extend(self.batch_of_routes(node_id, batch).await?);
        }
        Ok(all)
    }

    /// Scheme and port are those that the device of the open session has agreed to, as its agent uses them.
    async fn batch_of_routes(&self, node_id: Uuid, tunnel_ids: &[Uuid]) -> Result<Vec<Route>> {
        let tunnels = of_tunnels!(
            "SELECT t.id, t.subdomain, t.https, t.basic_auth, t.basic_auth_user, t.basic_auth_hash, t.host_header, \
                    COALESCE(s.local_scheme, t.local_scheme) AS local_scheme, \
                    COALESCE(s.local_port, t.local_port) AS local_port, t.proxy_protocol, t.tls_passthrough, d.domain, \
                    c.suspended_until, (SELECT u.domain FROM custom_domains u \
                                        WHERE u.tunnel_id = t.id AND u.assigned = TRUE) AS custom_domain \
             FROM tunnels t JOIN platform_domains d ON d.id = t.domain_id JOIN scopes c ON c.id = t.scope_id \
             LEFT JOIN sessions s ON s.tunnel_id = t.id AND s.ended_at IS NULL",
            ""
        );
        let ports = of_tunnels!(
            "SELECT e.tunnel_id, e.id, e.local_port, COALESCE(s.local_scheme, t.local_scheme) AS local_scheme, t.subdomain, \
                    d.domain FROM tunnels t LEFT JOIN sessions s ON s.tunnel_id = t.id AND s.ended_at IS NULL \
             JOIN platform_domains d ON d.id = t.domain_id \
             JOIN extra_ports e ON e.tunnel_id = t.id AND e.protocol = 'http'",
            "ORDER BY e.created_at, e.id"
        );
        let args = args![tunnel_ids, node_id];
        let rows = (&self.db).all(tunnels, args).await?;
        let mut found: HashMap<Uuid, Route> =
            readable(&rows, "tunnel", route).into_iter().map(|route| (route.tunnel_id, route)).collect();
        for row in &(&self.db).all(ports, args).await? {
            let (subdomain, domain) = (row.optional_text("subdomain")?, row.text("domain")?);
            if let (Some(route), Some(subdomain)) = (found.get_mut(&row.id("tunnel_id")?), subdomain) {
                let name = extra_subdomain(row.number("local_port")?, &format!("{subdomain}.{domain}"));
                route.names.push(RouteName { name, port_id: Some(row.id("id")?), tls: uses_tls(row)? });
            }
        }
        Ok(found.into_values().collect())
    }
}

fn route(row: &Row) -> DbResult<Route> {
    let domain = row.text("domain")?;
    let subdomain = row.optional_text("subdomain")?.map(|subdomain| format!("{subdomain}.{domain}"));
    let names = subdomain.into_iter().chain(row.optional_text("custom_domain")?);
    let (user, hash) = (row.optional_text("basic_auth_user")?, row.optional_text("basic_auth_hash")?);
    // Where either is missing, nobody is let in rather than everybody.
    let basic_auth = row
        .flag("basic_auth")?
        .then(|| BasicAuth { user: user.unwrap_or_default(), password_hash: hash.unwrap_or_default() });
    let tls = uses_tls(row)?;
    Ok(Route {
        tunnel_id: row.id("id")?,
        names: names.map(|name| RouteName { name: name.to_ascii_lowercase(), port_id: None, tls }).collect(),
        https: row.flag("https")?,
        suspended_until: row.optional_time("suspended_until")?,
        basic_auth,
        host_header: row.optional_text("host_header")?,
        h2c: row.string_enum::<LocalScheme>("local_scheme")? == LocalScheme::H2c,
        names_visitors: row.string_enum::<ProxyProtocol>("proxy_protocol")? != ProxyProtocol::None,
        tls_passthrough: row.flag("tls_passthrough")?,
    })
}

/// Whether the service behind a port is spoken to over TLS.
fn uses_tls(row: &Row) -> DbResult<bool> {
    Ok(row.string_enum::<LocalScheme>("local_scheme")?.uses_tls(row.number("local_port")?))
}

impl Write {
    /// Records that the names of an http tunnel, or what stands behind them, have changed. Its node hears of it after
    /// the commit.
    pub async fn touch_route(&mut self, tunnel_id: Uuid) -> Result<()> {
        self.renamed.insert(tunnel_id);
        let sql = sql!("SELECT node_id FROM tunnels WHERE id = $1 AND protocol = 'http'");
        if let Some(row) = self.optional(sql, args![tunnel_id]).await? {
            self.touch(row.id("node_id")?, tunnel_id);
        }
        Ok(())
    }
}
