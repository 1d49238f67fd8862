//! The URL of `[quota] store`: how to reach the store, and as whom.

use redis::{ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};

/// How the store is laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// One server, or one name for whichever serves.
    Single,
    /// A cluster; the hosts are some of its nodes.
    Cluster,
    /// The hosts are sentinels; they know where the master of this name is.
    Sentinel(String),
}

/// Where the store is, and as whom to be there.
#[derive(Clone)]
pub(super) struct Place {
    pub layout: Layout,
    /// Names or addresses with ports.
    pub hosts: Vec<(String, u16)>,
    pub user: Option<String>,
    password: Option<String>,
    pub db: i64,
}

/// Ports when the URL names none.
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26_379;

impl Place {
    /// Reads `redis://`, `redis+cluster://` or `redis+sentinel://`.
    ///
    /// # Errors
    /// What is wrong, without the URL, which may hold a password.
    pub(super) fn parse(url: &str) -> Result<Place, String> {
        let (scheme, rest) = url.split_once("://").ok_or("it is no URL")?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (format!("{login}@"), hosts),
            None => (String::new(), authority),
        };
        let (layout, db, port) = match (scheme, path.split_once('/')) {
            ("redis", None) => (Layout::Single, path, PORT),
            ("redis+cluster", None) if path.is_empty() || path == "0" => {
                (Layout::Cluster, "0", PORT)
            }
            ("redis+cluster", _) => return Err("a cluster has no databases but 0".to_owned()),
            ("redis+sentinel", split) => {
                let (name, db) = split.unwrap_or((path, ""));
                if name.is_empty() {
                    return Err("the name of the master is missing behind the hosts".to_owned());
                }
                (Layout::Sentinel(name.to_owned()), db, SENTINEL_PORT)
            }
            _ => return Err("it must be redis://, redis+cluster:// or redis+sentinel://".into()),
        };
        if layout == Layout::Single && hosts.contains(',') {
            return Err("redis:// takes one host".to_owned());
        }
        let mut place = Place { layout, hosts: vec![], user: None, password: None, db: 0 };
        for host in hosts.split(',') {
            // The crate knows how users, passwords and addresses are escaped.
            let one = format!("redis://{login}{host}/{db}");
            let info = one.into_connection_info().map_err(|_| "a host cannot be read")?;
            let ConnectionAddr::Tcp(name, given) = info.addr() else {
                return Err("a host cannot be read".to_owned());
            };
            let explicit =
                host.rsplit_once(':').is_some_and(|(_, port)| port.parse() == Ok(*given));
            place.hosts.push((name.clone(), if explicit { *given } else { port }));
            let settings = info.redis_settings();
            place.user = settings.username().map(str::to_owned);
            place.password = settings.password().map(str::to_owned);
            place.db = settings.db();
        }
        Ok(place)
    }

    /// The hosts, for the log.
    pub(super) fn shown(&self) -> String {
        let hosts: Vec<_> =
            self.hosts.iter().map(|(name, port)| format!("{name}:{port}")).collect();
        match &self.layout {
            Layout::Single => hosts.join(","),
            Layout::Cluster => format!("cluster {}", hosts.join(",")),
            Layout::Sentinel(name) => format!("{name} of sentinels {}", hosts.join(",")),
        }
    }

    /// One host, for the crate's own client; `login`: as the URL's user.
    pub(super) fn info(&self, host: (&str, u16), login: bool) -> Option<redis::ConnectionInfo> {
        let info = (host.0, host.1).into_connection_info().ok()?;
        let mut settings = RedisConnectionInfo::default().set_skip_set_lib_name();
        if let Some(password) = self.password.as_ref().filter(|_| login) {
            settings = settings.set_password(password);
            if let Some(user) = &self.user {
                settings = settings.set_username(user);
            }
        }
        Some(info.set_redis_settings(settings))
    }

    /// What is sent first on a connection to a server.
    pub(super) fn greeting(&self) -> Vec<redis::Cmd> {
        let mut greeting = Vec::new();
        if let Some(password) = &self.password {
            let mut auth = redis::cmd("AUTH");
            if let Some(user) = &self.user {
                auth.arg(user);
            }
            auth.arg(password);
            greeting.push(auth);
        }
        if self.db != 0 {
            greeting.push(redis::cmd("SELECT").arg(self.db).to_owned());
        }
        greeting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_all_three_layouts() {
        let place = Place::parse("redis://user:p%40ss@store:7000/3").unwrap();
        assert_eq!((place.layout.clone(), place.db), (Layout::Single, 3));
        assert_eq!(place.hosts, [("store".to_owned(), 7000)]);
        let [auth, select] = &place.greeting()[..] else { panic!("two commands") };
        let [auth, select] = [auth, select].map(redis::Cmd::get_packed_command);
        assert_eq!(auth, b"*3\r\n$4\r\nAUTH\r\n$4\r\nuser\r\n$4\r\np@ss\r\n");
        assert_eq!(select, b"*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n");
        let place = Place::parse("redis+cluster://a:1,b").unwrap();
        assert_eq!(place.hosts, [("a".to_owned(), 1), ("b".to_owned(), 6379)]);
        let place = Place::parse("redis+sentinel://:pw@a,[::1]:5/mymaster/2").unwrap();
        assert_eq!(place.layout, Layout::Sentinel("mymaster".into()));
        assert_eq!(place.hosts, [("a".to_owned(), 26_379), ("::1".to_owned(), 5)]);
        assert_eq!((place.db, place.greeting().len()), (2, 2));
        assert_eq!(place.shown(), "mymaster of sentinels a:26379,::1:5");
    }

    #[test]
    fn what_cannot_be_used_is_refused_without_being_shown() {
        for url in [
            "canary",
            "rediss://:canary@a",
            "redis://:canary@a,b",
            "redis+cluster://a/1",
            "redis+sentinel://:canary@a",
            "redis://:canary@a:port",
            "redis+cluster://:canary@a,,b",
        ] {
            let Err(error) = Place::parse(url) else { panic!("{url} is taken") };
            assert!(!error.contains("canary"), "{error}");
        }
    }
}
