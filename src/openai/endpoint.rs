//! Method and path to an endpoint. An allow-list: what is not here is not served.
//!
//! Paths are compared byte for byte, without the query and without any normalisation, so nothing
//! that an engine might read differently from us gets through.

use super::Span;

/// What a client may ask for (the contract, section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `POST /v1/chat/completions`
    ChatCompletions,
    /// `POST /v1/completions`
    Completions,
    /// `POST /v1/embeddings`
    Embeddings,
    /// `POST /v1/responses`
    Responses,
    /// `POST /v1/messages` (Anthropic)
    Messages,
    /// `POST /v1/messages/count_tokens` (Anthropic)
    CountTokens,
    /// `POST /v1/rerank`
    Rerank,
    /// `POST /v1/score`
    Score,
    /// `POST /tokenize`
    Tokenize,
    /// `POST /detokenize`
    Detokenize,
    /// `POST /v1/audio/transcriptions` (multipart)
    AudioTranscriptions,
    /// `POST /v1/audio/translations` (multipart)
    AudioTranslations,
    /// `POST /v1/audio/speech`
    AudioSpeech,
    /// `GET /v1/models`
    Models,
    /// `GET /v1/models/{id}`: the id's place in the path, percent-encoding and slashes as sent.
    Model(Span),
    /// `GET /health`
    Health,
}

/// The methods that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// GET.
    Get,
    /// HEAD: allowed where GET is (RFC 9110, 9.3.2); the caller sends no body.
    Head,
    /// POST.
    Post,
    /// Any other.
    Other,
}

/// Why a request goes nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteError {
    /// 404.
    NotFound,
    /// 405, with the value of its `Allow` field.
    MethodNotAllowed(&'static str),
}

/// Finds the endpoint for a method and a path (the target without its query).
///
/// # Errors
/// [`RouteError::NotFound`] for a path that is not served, whatever the method.
pub fn route(method: Method, path: &[u8]) -> Result<Endpoint, RouteError> {
    let endpoint = of_path(path).ok_or(RouteError::NotFound)?;
    let read = matches!(endpoint, Endpoint::Models | Endpoint::Model(_) | Endpoint::Health);
    match (method, read) {
        (Method::Get | Method::Head, true) | (Method::Post, false) => Ok(endpoint),
        (_, true) => Err(RouteError::MethodNotAllowed("GET, HEAD")),
        (_, false) => Err(RouteError::MethodNotAllowed("POST")),
    }
}

fn of_path(path: &[u8]) -> Option<Endpoint> {
    Some(match path {
        b"/v1/chat/completions" => Endpoint::ChatCompletions,
        b"/v1/completions" => Endpoint::Completions,
        b"/v1/embeddings" => Endpoint::Embeddings,
        b"/v1/responses" => Endpoint::Responses,
        b"/v1/messages" => Endpoint::Messages,
        b"/v1/messages/count_tokens" => Endpoint::CountTokens,
        b"/v1/rerank" => Endpoint::Rerank,
        b"/v1/score" => Endpoint::Score,
        b"/tokenize" => Endpoint::Tokenize,
        b"/detokenize" => Endpoint::Detokenize,
        b"/v1/audio/transcriptions" => Endpoint::AudioTranscriptions,
        b"/v1/audio/translations" => Endpoint::AudioTranslations,
        b"/v1/audio/speech" => Endpoint::AudioSpeech,
        b"/v1/models" => Endpoint::Models,
        b"/health" => Endpoint::Health,
        _ => {
            let id = path.strip_prefix(b"/v1/models/").filter(|id| !id.is_empty())?;
            Endpoint::Model(Span::between(path.len() - id.len(), path.len()))
        }
    })
}

impl Endpoint {
    /// The path of the engine's endpoint; for those that are ours alone, the one that we serve.
    #[must_use]
    pub fn path(self) -> &'static [u8] {
        match self {
            Endpoint::ChatCompletions => b"/v1/chat/completions",
            Endpoint::Completions => b"/v1/completions",
            Endpoint::Embeddings => b"/v1/embeddings",
            Endpoint::Responses => b"/v1/responses",
            Endpoint::Messages => b"/v1/messages",
            Endpoint::CountTokens => b"/v1/messages/count_tokens",
            Endpoint::Rerank => b"/v1/rerank",
            Endpoint::Score => b"/v1/score",
            Endpoint::Tokenize => b"/tokenize",
            Endpoint::Detokenize => b"/detokenize",
            Endpoint::AudioTranscriptions => b"/v1/audio/transcriptions",
            Endpoint::AudioTranslations => b"/v1/audio/translations",
            Endpoint::AudioSpeech => b"/v1/audio/speech",
            Endpoint::Models | Endpoint::Model(_) => b"/v1/models",
            Endpoint::Health => b"/health",
        }
    }

    /// The path that it is served under, as logs and traces name it: an id in it is not told.
    #[must_use]
    pub fn route_name(self) -> &'static str {
        match self {
            Endpoint::Model(_) => "/v1/models/{id}",
            // Every path of ours is ASCII.
            known => std::str::from_utf8(known.path()).unwrap_or_default(),
        }
    }

    /// What OpenTelemetry's GenAI conventions call it, where they know it.
    #[must_use]
    pub fn operation(self) -> Option<&'static str> {
        match self {
            Endpoint::ChatCompletions | Endpoint::Responses | Endpoint::Messages => Some("chat"),
            Endpoint::Completions => Some("text_completion"),
            Endpoint::Embeddings => Some("embeddings"),
            _ => None,
        }
    }

    /// Its name in usage records and metric labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Endpoint::ChatCompletions => "chat_completions",
            Endpoint::Completions => "completions",
            Endpoint::Embeddings => "embeddings",
            Endpoint::Responses => "responses",
            Endpoint::Messages => "messages",
            Endpoint::CountTokens => "count_tokens",
            Endpoint::Rerank => "rerank",
            Endpoint::Score => "score",
            Endpoint::Tokenize => "tokenize",
            Endpoint::Detokenize => "detokenize",
            Endpoint::AudioTranscriptions => "audio_transcriptions",
            Endpoint::AudioTranslations => "audio_translations",
            Endpoint::AudioSpeech => "audio_speech",
            Endpoint::Models => "models",
            Endpoint::Model(_) => "model",
            Endpoint::Health => "health",
        }
    }

    /// The endpoint can answer with an event stream when the body says `stream: true`.
    #[must_use]
    pub fn streams(self) -> bool {
        self.generates()
            || matches!(
                self,
                Endpoint::AudioTranscriptions | Endpoint::AudioTranslations | Endpoint::AudioSpeech
            )
    }

    /// The engine generates text, token by token.
    #[must_use]
    pub fn generates(self) -> bool {
        matches!(
            self,
            Endpoint::ChatCompletions
                | Endpoint::Completions
                | Endpoint::Responses
                | Endpoint::Messages
        )
    }

    /// Its streams say what was used in an event that is sent only if `stream_options` of the body
    /// ask for it: there we ask, and take out what the client has not asked for.
    #[must_use]
    pub fn usage_is_asked_for(self) -> bool {
        matches!(self, Endpoint::ChatCompletions | Endpoint::Completions)
    }

    /// Its streams end with an event of their own, so that one without it was cut: `[DONE]`,
    /// `response.completed`, `message_stop`. (Speech is sound, in no events.)
    #[must_use]
    pub fn ends_with_event(self) -> bool {
        self.generates() || self.multipart()
    }

    /// Its answer, where it is no stream, is a JSON object.
    #[must_use]
    pub fn answers_json(self) -> bool {
        !matches!(
            self,
            Endpoint::AudioTranscriptions | Endpoint::AudioTranslations | Endpoint::AudioSpeech
        )
    }

    /// The field that limits how many tokens a sequence may generate.
    #[must_use]
    pub fn limit_field(self) -> &'static str {
        match self {
            Endpoint::Responses => "max_output_tokens",
            _ => "max_tokens",
        }
    }

    /// The body is `multipart/form-data`, for [`super::multipart`].
    #[must_use]
    pub fn multipart(self) -> bool {
        matches!(self, Endpoint::AudioTranscriptions | Endpoint::AudioTranslations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_exact() {
        let post = |path: &str| route(Method::Post, path.as_bytes());
        assert_eq!(post("/v1/chat/completions"), Ok(Endpoint::ChatCompletions));
        assert_eq!(post("/tokenize"), Ok(Endpoint::Tokenize));
        for path in [
            "",
            "/",
            "*",
            "/v1/chat/completions/",
            "//v1/chat/completions",
            "/V1/chat/completions",
            "/v1/chat/./completions",
            "/v1/chat%2fcompletions",
            "/v1/chat/completions?x",
            "/v1/chat/completions/batch",
            "/v1/chat/completions/render",
            "/metrics",
            "/sleep",
            "/reset_prefix_cache",
            "/collective_rpc",
            "/v1/load_lora_adapter",
            "/adapters",
            "/v1/models/",
            "/invocations",
            "http://h/v1/completions",
        ] {
            assert_eq!(post(path), Err(RouteError::NotFound), "{path}");
        }
    }

    #[test]
    fn a_wrong_method_is_told_the_right_one() {
        use RouteError::MethodNotAllowed;
        assert_eq!(route(Method::Get, b"/v1/completions"), Err(MethodNotAllowed("POST")));
        assert_eq!(route(Method::Other, b"/v1/embeddings"), Err(MethodNotAllowed("POST")));
        assert_eq!(route(Method::Post, b"/health"), Err(MethodNotAllowed("GET, HEAD")));
        assert_eq!(route(Method::Head, b"/health"), Ok(Endpoint::Health));
        assert_eq!(route(Method::Other, b"/nope"), Err(RouteError::NotFound));
    }

    #[test]
    fn a_model_id_keeps_its_slashes() {
        let path = b"/v1/models/meta-llama/Llama-3.1-8B";
        let Ok(Endpoint::Model(id)) = route(Method::Get, path) else { panic!("not a model") };
        assert_eq!(id.of(path), b"meta-llama/Llama-3.1-8B");
    }

    #[test]
    fn only_text_generation_and_audio_stream() {
        assert!(Endpoint::Messages.streams() && Endpoint::AudioSpeech.streams());
        assert!(!Endpoint::Embeddings.streams() && !Endpoint::Tokenize.streams());
    }
}
