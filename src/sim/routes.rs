//! Which path gives which answer: vLLM's routes, and the simulator's own `/stats` and `/fault`.
//!
//! On the connection's task; owns nothing.

use std::rc::Rc;

use serde::Deserialize;
use serde_json::json;

use super::answer::quoted;
use super::body::{Body, Node};
use super::call::{Api, Call, render};
use super::connection::{Request, closes, is_head, path};
use super::errors::Refusal;
use super::fault::{Fault, Kind};
use super::fleet::Command;
use super::generate::{generate, refuse};
use super::replica::{Lora, Replica};
use super::stats::add;
use super::wire::{End, Wire};
use super::{date, metrics, token};
use crate::http1::Method;
use crate::openai::Endpoint;

const JSON: &str = "application/json";

/// Numbers in an embedding.
const EMBEDDING_DIMENSIONS: usize = 8;

/// What a path is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Route {
    Generate(Api),
    Embeddings,
    Audio,
    Tokenize,
    Detokenize,
    CountTokens,
    LoadLora,
    UnloadLora,
    Fault,
    ResetPrefixCache,
    KvEventSources,
    Models,
    Health,
    Version,
    Load,
    Metrics,
    Stats,
}

impl Route {
    fn find(path: &[u8]) -> Option<Route> {
        Some(match path {
            b"/v1/chat/completions" => Route::Generate(Api::Chat),
            b"/v1/completions" => Route::Generate(Api::Completions),
            b"/v1/responses" => Route::Generate(Api::Responses),
            b"/v1/messages" => Route::Generate(Api::Messages),
            b"/v1/messages/count_tokens" => Route::CountTokens,
            b"/v1/embeddings" => Route::Embeddings,
            b"/v1/audio/transcriptions" | b"/v1/audio/translations" => Route::Audio,
            b"/tokenize" => Route::Tokenize,
            b"/detokenize" => Route::Detokenize,
            b"/v1/load_lora_adapter" => Route::LoadLora,
            b"/v1/unload_lora_adapter" => Route::UnloadLora,
            b"/fault" => Route::Fault,
            b"/reset_prefix_cache" => Route::ResetPrefixCache,
            b"/kv_event_sources" => Route::KvEventSources,
            b"/v1/models" => Route::Models,
            b"/health" | b"/ping" => Route::Health,
            b"/version" => Route::Version,
            b"/load" => Route::Load,
            b"/metrics" => Route::Metrics,
            b"/stats" => Route::Stats,
            _ => return None,
        })
    }

    fn is_get(self) -> bool {
        use Route::{Health, KvEventSources, Load, Metrics, Models, Stats, Version};
        matches!(self, Models | Health | KvEventSources | Version | Load | Metrics | Stats)
    }

    /// Whether a model runs for it.
    fn is_generation(self) -> bool {
        matches!(self, Route::Generate(_) | Route::Embeddings | Route::Audio)
    }
}

/// Answers one request; an error ends the connection.
pub(super) async fn answer(wire: &mut Wire, request: &Request) -> Result<(), End> {
    let replica = Rc::clone(&wire.replica);
    let route = Route::find(path(request));
    let generation = route.is_some_and(Route::is_generation);
    if generation {
        add(&replica.counters.requests, 1);
        replica.counters.keep_request(request.head_bytes(), request.body());
    }
    let fault = replica.strike(path(request), generation);
    wire.begin(fault, closes(&request.head), is_head(request));
    let given_id = request.head.request_id.map(|span| span.of(request.head_bytes()));
    let given_id = given_id.and_then(|id| std::str::from_utf8(id).ok());
    if replica.config.request_id_headers {
        match given_id {
            Some(id) => wire.request_id.push_str(id),
            None => {
                let (high, low) = (replica.fresh_id(), replica.fresh_id());
                wire.request_id = format!("{high:016x}{low:016x}");
            }
        }
    }
    let Some(route) = route else {
        return plain(wire, 404, b"{\"detail\":\"Not Found\"}", "").await;
    };
    let allowed = if route.is_get() { Method::Get } else { Method::Post };
    if request.head.method != allowed {
        let allow = if route.is_get() { "GET" } else { "POST" };
        return plain(wire, 405, b"{\"detail\":\"Method Not Allowed\"}", allow).await;
    }
    if let Some(unauthorized) = unauthorized(&replica, request) {
        return plain(wire, 401, unauthorized, "").await;
    }
    if wire.kind() == Kind::Status {
        return status_fault(wire).await;
    }
    if route.is_get() { look(wire, route).await } else { act(wire, route, request, given_id).await }
}

async fn look(wire: &mut Wire, route: Route) -> Result<(), End> {
    let replica = Rc::clone(&wire.replica);
    match route {
        Route::Health => {
            wire.body.clear();
            wire.whole(200, "", "").await
        }
        Route::Version => plain(wire, 200, b"{\"version\":\"0.32.0\"}", "").await,
        Route::Load => plain(wire, 200, b"{\"server_load\":0}", "").await,
        Route::KvEventSources => match &replica.kv_events {
            Some(kv_events) => plain(wire, 200, kv_events.sources.as_bytes(), "").await,
            None => plain(wire, 200, b"{}", "").await,
        },
        Route::Models => plain(wire, 200, models(&replica).as_bytes(), "").await,
        Route::Metrics => {
            wire.body.clear();
            metrics::write(&replica, &mut wire.body);
            wire.whole(200, "text/plain; version=1.0.0; charset=utf-8", "").await
        }
        _ => {
            let stats = serde_json::to_vec(&replica.stats()).unwrap_or_default();
            plain(wire, 200, &stats, "").await
        }
    }
}

async fn act(
    wire: &mut Wire,
    route: Route,
    request: &Request,
    given_id: Option<&str>,
) -> Result<(), End> {
    let replica = Rc::clone(&wire.replica);
    if route == Route::Audio {
        return audio(wire, request).await;
    }
    let content_type = request.head.content_type.map(|span| span.of(request.head_bytes()));
    let is_json = content_type.is_some_and(|t| t.starts_with(JSON.as_bytes()));
    if !is_json && !matches!(route, Route::Fault | Route::ResetPrefixCache) {
        return refused(wire, &Refusal::content_type()).await;
    }
    let body = request.body();
    if replica.terminating.get().is_some() && route.is_generation() {
        return refused(wire, &Refusal::shut_down()).await;
    }
    let done = match route {
        Route::Generate(api) => {
            let is_lora = |name: &str| replica.loras.borrow().iter().any(|l| l.name == name);
            match Call::read(api, body, &replica.config, replica.exact.as_deref(), is_lora) {
                Ok(call) => return generate(wire, &call, given_id).await,
                Err(refusal) => Err(refusal),
            }
        }
        Route::Embeddings => embeddings(&replica, body),
        Route::Tokenize => tokenize(&replica, body),
        Route::CountTokens => count_tokens(&replica, body),
        Route::Detokenize => detokenize(&replica, body),
        Route::Fault => set_fault(&replica, body),
        Route::ResetPrefixCache => Ok(format!("{{\"success\":{}}}", replica.reset_prefix_cache())),
        Route::LoadLora | Route::UnloadLora => {
            return match change_loras(&replica, route, body) {
                Ok(text) => {
                    wire.body = text.into_bytes();
                    wire.whole(200, "", "").await
                }
                Err(refusal) => refused(wire, &refusal).await,
            };
        }
        _ => Err(Refusal::not_found("Not Found".to_owned())),
    };
    match done {
        Ok(json) => {
            if route == Route::Embeddings {
                add(&replica.counters.completed, 1);
            }
            plain(wire, 200, json.as_bytes(), "").await
        }
        Err(refusal) => refused(wire, &refusal).await,
    }
}

async fn plain(wire: &mut Wire, status: u16, json: &[u8], allow: &str) -> Result<(), End> {
    wire.body.clear();
    wire.body.extend_from_slice(json);
    wire.whole(status, JSON, allow).await
}

async fn refused(wire: &mut Wire, refusal: &Refusal) -> Result<(), End> {
    add(&wire.replica.counters.refused, 1);
    refuse(wire, refusal).await
}

async fn status_fault(wire: &mut Wire) -> Result<(), End> {
    let Some(fault) = wire.fault.clone() else { return Ok(()) };
    let status = fault.status.unwrap_or(500);
    match &fault.body {
        Some(body) => {
            add(&wire.replica.counters.refused, 1);
            plain(wire, status, body.as_bytes(), "").await
        }
        None if status == 401 => plain(wire, status, UNAUTHORIZED, "").await,
        None => refused(wire, &Refusal::of_status(status)).await,
    }
}

const UNAUTHORIZED: &[u8] = b"{\"error\":\"Unauthorized\"}";

/// The key is only asked for under `/v1`, as in vLLM.
fn unauthorized(replica: &Replica, request: &Request) -> Option<&'static [u8]> {
    let key = replica.config.api_key.as_ref()?;
    let given = request.head.authorization.map(|span| span.of(request.head_bytes()));
    let given = given.and_then(|value| value.strip_prefix(b"Bearer "));
    let right = given == Some(key.as_bytes()) || !path(request).starts_with(b"/v1");
    (!right).then_some(UNAUTHORIZED)
}

fn models(replica: &Replica) -> String {
    let created = date::unix_seconds();
    let entry = |name: &str, root: &str, parent: &str, limit: &str| {
        format!(
            "{{\"id\":{},\"object\":\"model\",\"created\":{created},\"owned_by\":\"vllm\",\
             \"root\":{},\"parent\":{parent},\"max_model_len\":{limit},\"permission\":[{{\"id\":\
             \"modelperm-{:016x}\",\"object\":\"model_permission\",\"created\":{created},\
             \"allow_create_engine\":false,\"allow_sampling\":true,\"allow_logprobs\":true,\
             \"allow_search_indices\":false,\"allow_view\":true,\"allow_fine_tuning\":false,\
             \"organization\":\"*\",\"group\":null,\"is_blocking\":false}}]}}",
            quoted(name),
            quoted(root),
            replica.fresh_id()
        )
    };
    let base = &replica.config.model;
    let limit = replica.config.model_len_max.to_string();
    let mut list = vec![entry(base, base, "null", &limit)];
    for lora in replica.loras.borrow().iter() {
        list.push(entry(&lora.name, &lora.path, &quoted(base), "null"));
    }
    format!("{{\"object\":\"list\",\"data\":[{}]}}", list.join(","))
}

fn read_body(body: &[u8]) -> Result<Body<'_>, Refusal> {
    serde_json::from_slice(body).map_err(|e| Refusal::unreadable(body, &e))
}

fn embeddings(replica: &Replica, body: &[u8]) -> Result<String, Refusal> {
    let read = read_body(body)?;
    let inputs = match &read.input {
        Node::Null => return Err(Refusal::missing("input", 0)),
        Node::List(list) if !matches!(list.first(), Some(Node::Number(_))) => list.as_slice(),
        one => std::slice::from_ref(one),
    };
    let mut tokens: u64 = 0;
    let mut data = Vec::new();
    for (index, input) in inputs.iter().enumerate() {
        let mut text = Vec::new();
        input.append_text(&mut text);
        tokens += token::count(&text);
        let seed = token::hash(0, &text);
        let numbers = (0..EMBEDDING_DIMENSIONS as u64)
            .map(|i| (token::mix(seed, i) >> 40) as f64 / f64::from(1 << 23) - 1.0);
        let embedding: Vec<f64> = numbers.collect();
        data.push(json!({"index": index, "object": "embedding", "embedding": embedding}));
    }
    if let Some(ids) = real_ids(replica, Endpoint::Embeddings, body) {
        tokens = ids.iter().map(|ids| ids.len() as u64).sum();
    }
    add(&replica.counters.prompt_tokens, tokens);
    let (id, created) = (replica.fresh_id(), date::unix_seconds());
    let model = quoted(read.model.as_deref().unwrap_or(&replica.config.model));
    let data = serde_json::Value::from(data);
    Ok(format!(
        "{{\"id\":\"embd-{id:016x}\",\"object\":\"list\",\"created\":{created},\"model\":{model},\
         \"data\":{data},\"usage\":{{\"prompt_tokens\":{tokens},\"total_tokens\":{tokens},\
         \"completion_tokens\":0,\"prompt_tokens_details\":null}}}}"
    ))
}

/// A transcript whose text is a word for each KiB of the upload, at most 64.
async fn audio(wire: &mut Wire, request: &Request) -> Result<(), End> {
    let body = request.body();
    let words = (body.len() as u64).div_ceil(1024).clamp(1, 64);
    let tag = token::number(body, "tag").unwrap_or_else(|| token::hash(0, body));
    let text: Vec<u8> = (0..words).flat_map(|i| token::token_text(tag, i)).collect();
    let text = quoted(&String::from_utf8_lossy(&text));
    let json =
        format!("{{\"text\":{text},\"usage\":{{\"type\":\"duration\",\"seconds\":{words}}}}}");
    add(&wire.replica.counters.completed, 1);
    plain(wire, 200, json.as_bytes(), "").await
}

fn tokenize(replica: &Replica, body: &[u8]) -> Result<String, Refusal> {
    let read = read_body(body)?;
    let text = match &read.messages {
        Some(messages) => render(&Node::Null, messages).text,
        None => {
            let mut text = Vec::new();
            read.prompt.append_text(&mut text);
            text
        }
    };
    let real = real_ids(replica, Endpoint::Tokenize, body).and_then(|mut lists| lists.pop());
    let pieces = replica.exact.as_ref().filter(|_| real.is_some());
    let tokens = real.unwrap_or_else(|| token::tokens(&text).collect());
    let piece = |id: &u32| match pieces {
        Some(exact) => exact.token(*id),
        None => Some(String::from_utf8_lossy(&token::text(std::iter::once(*id))).into_owned()),
    };
    let strings = read.return_token_strs.unwrap_or(false);
    let strings = strings.then(|| tokens.iter().map(piece).collect::<Vec<_>>());
    let (count, limit) = (tokens.len(), replica.config.model_len_max);
    let (tokens, strings) = (serde_json::Value::from(tokens), json!(strings));
    Ok(format!(
        "{{\"count\":{count},\"max_model_len\":{limit},\"tokens\":{tokens},\
         \"token_strs\":{strings}}}"
    ))
}

/// The ids of each prompt, when the fleet has a real tokenizer.
fn real_ids(replica: &Replica, endpoint: Endpoint, body: &[u8]) -> Option<Vec<Vec<u32>>> {
    replica.exact.as_ref()?.ids(endpoint, body)
}

fn count_tokens(replica: &Replica, body: &[u8]) -> Result<String, Refusal> {
    let read = read_body(body)?;
    let messages = read.messages.unwrap_or_default();
    let n = match real_ids(replica, Endpoint::CountTokens, body) {
        Some(ids) => ids.iter().map(|ids| ids.len() as u64).sum(),
        None => render(&read.system, &messages).tokens(),
    };
    Ok(format!("{{\"input_tokens\":{n},\"context_management\":{{\"original_input_tokens\":{n}}}}}"))
}

fn detokenize(replica: &Replica, body: &[u8]) -> Result<String, Refusal> {
    let tokens = read_body(body)?.tokens.unwrap_or_default();
    let real = replica.exact.as_ref().map(|exact| exact.text(&tokens));
    let text = match real {
        Some(Some(text)) => text.into_bytes(),
        Some(None) => return Err(Refusal::user_input("Token id is out of range".to_owned())),
        None => token::text(tokens.into_iter()),
    };
    Ok(format!("{{\"prompt\":{}}}", quoted(&String::from_utf8_lossy(&text))))
}

fn set_fault(replica: &Rc<Replica>, body: &[u8]) -> Result<String, Refusal> {
    let fault: Fault =
        serde_json::from_slice(body).map_err(|e| Refusal::user_input(e.to_string()))?;
    let port = fault.port.unwrap_or(replica.port);
    if port == replica.port {
        replica.set_fault(fault);
    } else {
        let place = replica.shared.find(port);
        let place =
            place.ok_or_else(|| Refusal::not_found(format!("no replica on port {port}")))?;
        // It is in force a turn of its thread later; nobody waits for the answer.
        let (answer, _) = std::sync::mpsc::channel();
        replica.shared.send(place, Command::Fault(place, Box::new(fault), answer));
    }
    Ok("{\"ok\":true}".to_owned())
}

#[derive(Deserialize)]
struct LoraOrder {
    lora_name: String,
    #[serde(default)]
    lora_path: String,
    #[serde(default)]
    load_inplace: bool,
}

/// vLLM's texts; a path under `/nonexistent` is missing, any other is there.
fn change_loras(replica: &Replica, route: Route, body: &[u8]) -> Result<String, Refusal> {
    let order: LoraOrder =
        serde_json::from_slice(body).map_err(|e| Refusal::unreadable(body, &e))?;
    let name = order.lora_name;
    let mut loras = replica.loras.borrow_mut();
    let loaded = loras.iter().position(|l| l.name == name);
    if route == Route::UnloadLora {
        let at = loaded.ok_or_else(|| {
            Refusal::not_found(format!("The lora adapter '{name}' cannot be found."))
        })?;
        loras.remove(at);
        return Ok(format!("Success: LoRA adapter '{name}' removed successfully."));
    }
    let path = order.lora_path;
    if name == replica.config.model {
        let message = format!("The lora adapter '{name}' conflicts with a served base model.");
        return Err(Refusal::user_input(message));
    }
    if path.starts_with("/nonexistent") {
        let message = format!("Loading lora {name} failed: No adapter found for {path}");
        return Err(Refusal::not_found(message));
    }
    match loaded {
        Some(_) if !order.load_inplace => {
            return Err(Refusal::user_input(format!(
                "The lora adapter '{name}' has already been loaded. If you want to load the \
                 adapter in place, set 'load_inplace' to True."
            )));
        }
        Some(at) => loras[at].path = path,
        None => loras.push(Lora { name: name.clone(), path }),
    }
    Ok(format!("Success: LoRA adapter '{name}' added successfully."))
}
