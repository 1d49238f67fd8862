//! `quota`: how a tenant's budget stands in the store, another level, a new beginning.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::Failed;
use super::admin::Admin;
use crate::config::Config;
use crate::runtime::clock;
use crate::tenants::Accounts;
use crate::tenants::quota::Account;
use crate::tenants::quota::store::{Desk, Shown};

/// Show or change what a tenant has left
#[derive(clap::Args)]
#[command(after_help = "Examples:
  expedite quota --config gateway.toml show acme
  expedite quota --config gateway.toml set acme --tokens 100000
  expedite quota --config gateway.toml reset acme
  expedite quota --admin 127.0.0.1:9090 show acme --json

Asks the store of [quota]. While that is \"memory\", each gateway has books of its own: `show` asks
the admin listener of one, by --admin or server.admin (and with EXPEDITE_ADMIN_SECRET or
server.admin_secret if it wants a secret), and nothing can be changed.
`set` and `reset` leave alone what gateways have taken ahead and what runs: a running request is
counted as in flight again within a third of lease_ms.")]
pub(super) struct Args {
    /// The configuration file
    #[arg(long, value_name = "FILE", required_unless_present = "admin")]
    config: Option<PathBuf>,
    /// Ask this admin listener, an address or http://ADDRESS
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    /// What to do
    #[arg(value_enum)]
    order: Order,
    /// The tenant's id
    tenant: String,
    /// With `set`: tokens in the bucket from now on
    #[arg(long, value_name = "N", required_if_eq("order", "set"))]
    tokens: Option<u64>,
    /// With `set`: the bucket of this key, by its public name, instead of the tenant's
    #[arg(long, value_name = "KEY_ID")]
    key: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Order {
    /// How the tenant and its keys with limits of their own stand
    Show,
    /// Another level
    Set,
    /// Full buckets, and nothing in flight
    Reset,
}

/// Runs the command.
pub(super) fn run(args: Args) -> ExitCode {
    match ordered(&args) {
        Ok(said) if args.json => super::print(&format!("{said:#}\n")),
        Ok(said) => super::print(&table(&said)),
        Err((code, what)) => {
            eprintln!("expedite: {what}");
            ExitCode::from(code)
        }
    }
}

fn ordered(args: &Args) -> Result<Value, Failed> {
    let config = args.config.as_ref().map(Config::load).transpose();
    let config = config.map_err(|errors| (super::EXIT_USAGE, errors.to_string()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| (1, format!("no runtime: {error}")))?;
    let desk = match config.as_ref().filter(|_| args.admin.is_none()) {
        Some(config) => runtime.block_on(Desk::open(&config.quota)).map_err(|what| (1, what))?,
        None => None,
    };
    match (desk, &config) {
        (Some(desk), Some(config)) => runtime.block_on(by_store(args, config, &desk)),
        (_, config) if args.order == Order::Show => by_gateway(args, config.as_ref()),
        _ => Err((
            super::EXIT_USAGE,
            "set and reset need a store in [quota]: with \"memory\" each gateway has its own \
             books, and they begin anew with it"
                .to_owned(),
        )),
    }
}

async fn by_store(args: &Args, config: &Config, desk: &Desk) -> Result<Value, Failed> {
    let accounts = Accounts::new(&config.tenants, true, None, clock::now_ns());
    let known = accounts.tenants().iter().find(|of| of.tenant.name() == args.tenant);
    let known = known.ok_or_else(|| no_tenant(&args.tenant))?;
    let of_keys = known.keys.iter().map(|(id, account)| (Some(id.as_str().to_owned()), account));
    let all: Vec<_> = [(None, &known.tenant)].into_iter().chain(of_keys).collect();
    let failed = |what| (1, what);
    let mut shown = Vec::new();
    for (key, account) in all {
        let (name, limits) = (account.name(), account.limits());
        match args.order {
            Order::Reset => desk.reset(&args.tenant, name).await.map_err(failed)?,
            Order::Set if key == args.key => {
                let tokens = args.tokens.unwrap_or_default();
                if limits.bucket().is_none_or(|(_, burst)| tokens > burst) {
                    let what = format!("{name} has no bucket that holds {tokens} tokens");
                    return Err((super::EXIT_USAGE, what));
                }
                desk.set(&args.tenant, name, limits, tokens).await.map_err(failed)?;
            }
            Order::Set | Order::Show => {}
        }
        let stands = desk.show(&args.tenant, name, limits).await.map_err(failed)?;
        shown.push(account_json(key.as_deref(), account, &stands));
    }
    let known_key = |value: &Value| value["key_id"].as_str() == args.key.as_deref();
    if !shown.iter().any(known_key) {
        return Err((super::EXIT_USAGE, "no key of that name has limits of its own".to_owned()));
    }
    let gateways = desk.gateways().await.map_err(failed)?;
    Ok(json!({"tenant": args.tenant, "gateways": gateways, "accounts": shown}))
}

fn account_json(key: Option<&str>, account: &Account, stands: &Shown) -> Value {
    let ahead = stands.ahead.iter().map(|(gateway, (tokens, sequences))| {
        json!({"gateway": gateway, "tokens": tokens, "sequences": sequences})
    });
    json!({
        "key_id": key,
        "tokens_left": stands.tokens,
        "burst_tokens": account.limits().bucket().map(|(_, burst)| burst),
        "tokens_per_second": account.limits().tokens_per_second,
        "in_flight": stands.in_flight,
        "in_flight_max": account.limits().in_flight_max,
        "requests": stands.requests,
        "ahead": ahead.collect::<Vec<_>>(),
    })
}

/// A gateway's own books, by its status.
fn by_gateway(args: &Args, config: Option<&Config>) -> Result<Value, Failed> {
    let admin = Admin::of(args.admin.as_deref(), config)?;
    let status = admin.ask("GET /status.json", b"").map_err(|what| (1, what))?;
    let tenants = status["tenants"].as_array().cloned().unwrap_or_default();
    let found = tenants.into_iter().find(|tenant| tenant["id"] == args.tenant.as_str());
    let mut tenant = found.ok_or_else(|| no_tenant(&args.tenant))?;
    let keys = tenant.as_object_mut().and_then(|tenant| tenant.remove("keys"));
    let mut accounts = vec![tenant];
    accounts.extend(keys.and_then(|keys| keys.as_array().cloned()).unwrap_or_default());
    Ok(json!({"tenant": args.tenant, "accounts": accounts}))
}

fn no_tenant(id: &str) -> Failed {
    (super::EXIT_USAGE, format!("there is no tenant \"{id}\""))
}

/// For people.
fn table(said: &Value) -> String {
    let mut out = format!("tenant {}", said["tenant"].as_str().unwrap_or_default());
    if let Some(gateways) = said["gateways"].as_u64() {
        let _ = write!(out, ", {gateways} gateways alive");
    }
    out.push('\n');
    let of = |left: &Value, most: &Value| match (left.as_u64(), most.as_u64()) {
        (Some(left), Some(most)) => format!("{left} of {most}"),
        (Some(count), None) => format!("{count}, unlimited"),
        (None, _) => "unlimited".to_owned(),
    };
    for account in said["accounts"].as_array().into_iter().flatten() {
        let name =
            account["key_id"].as_str().map_or("all keys".to_owned(), |id| format!("key {id}"));
        let tokens = of(&account["tokens_left"], &account["burst_tokens"]);
        let flight = of(&account["in_flight"], &account["in_flight_max"]);
        let _ = writeln!(out, "{name:<14} tokens left {tokens}; in flight {flight}");
        for ahead in account["ahead"].as_array().into_iter().flatten() {
            let _ = writeln!(
                out,
                "{:<14} {} has taken ahead {} tokens, {} sequences",
                "",
                ahead["gateway"].as_str().unwrap_or_default(),
                ahead["tokens"],
                ahead["sequences"],
            );
        }
    }
    out
}
