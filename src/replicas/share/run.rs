//! The task that shares: connects to the store, exchanges batches until it is gone, and begins
//! again. That it is gone, and that it is back, is said once each.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::{MultiplexedConnection, PubSubStream};
use redis::{AsyncConnectionConfig, Client, ErrorKind, RedisError};
use tokio::time::{sleep, timeout};

use super::exchange::Exchange;
use super::stats::Stats;
use crate::replicas::fleet::Fleet;
use crate::runtime::log::Log;

/// To connect and subscribe, and for an answer to a batch.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);
/// Between two attempts to reach the store, doubled from the one to the other.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// What sharing needs.
pub struct Share {
    client: Client,
    /// `host:port`, for the log.
    pub(super) place: String,
    pub(super) channel: String,
    pub(super) every: Duration,
    /// Who we are: drawn at random.
    pub(super) gateway: u64,
    pub(super) stats: Arc<Stats>,
}

impl Share {
    /// Sharing through the store at `url`, every `every_ms`. Connects to nothing yet.
    ///
    /// # Errors
    /// No URL that can be used; the words do not show it, since it may hold a password.
    pub fn new(url: &str, every_ms: u64, stats: Arc<Stats>) -> Result<Share, String> {
        let client = Client::open(url).map_err(|_| "the URL cannot be read".to_owned())?;
        let mut id = [0; 8];
        getrandom::fill(&mut id).map_err(|e| format!("no random numbers: {e}"))?;
        let info = client.get_connection_info();
        Ok(Share {
            place: info.addr().to_string(),
            // Publish/subscribe knows no databases: the number keeps two fleets apart.
            channel: format!("expedite:share:{}", info.redis_settings().db()),
            every: Duration::from_millis(every_ms.max(1)),
            gateway: u64::from_le_bytes(id),
            client,
            stats,
        })
    }

    pub(super) async fn connect(&self) -> Result<(MultiplexedConnection, PubSubStream), Down> {
        let connected = async {
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(STORE_TIMEOUT))
                .set_response_timeout(Some(STORE_TIMEOUT));
            let sending = self.client.get_multiplexed_async_connection_with_config(&config).await?;
            let (mut sink, messages) = self.client.get_async_pubsub().await?.split();
            sink.subscribe(&self.channel).await?;
            Ok((sending, messages))
        };
        timeout(STORE_TIMEOUT, connected).await.map_err(|_| Down::Silent)?
    }
}

/// Why the store is as good as gone.
pub(super) enum Down {
    /// It does not answer.
    Silent,
    /// It has ended the subscription.
    Closed,
    /// It refused, or the connection broke.
    Failed(RedisError),
}

impl From<RedisError> for Down {
    fn from(error: RedisError) -> Down {
        Down::Failed(error)
    }
}

impl Down {
    /// For the log; never what a store has said at length, which may quote what we sent.
    fn reason(&self) -> String {
        match self {
            Down::Silent => "it does not answer".to_owned(),
            Down::Closed => "it closed the connection".to_owned(),
            Down::Failed(error) if error.kind() == ErrorKind::AuthenticationFailed => {
                "it does not accept the user or password".to_owned()
            }
            Down::Failed(error) => match error.code() {
                Some(code) => format!("it answered {code}"),
                None => error.category().to_owned(),
            },
        }
    }
}

/// Shares until the task is dropped. `fleet` gives the fleet as it is now.
pub async fn run(share: Share, log: &Log, fleet: impl Fn() -> Arc<Fleet>) {
    let place = share.place.clone();
    let mut exchange = Exchange::new(share, log, fleet);
    let (mut said, mut pause) = (false, RETRY_MIN);
    loop {
        let down = exchange.session().await;
        if exchange.ended() {
            (said, pause) = (false, RETRY_MIN);
        }
        if !said {
            let reason = down.reason();
            log.warn(&format!("the share store {place} is away ({reason}): own view only"));
            said = true;
        }
        // Spread, so that all gateways do not come back in one burst.
        sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
}
