//! Reads what a replica tells of itself beside its models. Pure; runs on the control thread.

/// A text in the proportions of ordinary traffic, to learn how many bytes a token takes.
pub(super) const SAMPLE: &str = "Summarize the report below in three short bullet points for an \
    engineering audience, then list the open questions.\n\nThe new cache keeps 4,096 entries per \
    shard; a miss costs about 12.5 ms, and p99 latency fell from 310 ms to 190 ms (n = 1,204).\n\
    ```python\ndef total(items: list[dict]) -> float:\n    return sum(item[\"price\"] \
    * item[\"n\"] for item in items)\n```\n{\"user\": \"maria\", \"ids\": [17, 42], \"ok\": true}\n\
    Die Lieferung kommt am Donnerstag. \u{4eca}\u{5929}\u{5929}\u{6c14}\u{5f88}\u{597d}\u{3002}";

/// `block_size` of `vllm:cache_config_info` on a metrics page.
pub(super) fn block_tokens(page: &[u8]) -> Option<u32> {
    let page = std::str::from_utf8(page).ok()?;
    let line = page.lines().find(|line| line.starts_with("vllm:cache_config_info{"))?;
    // A label of its own, not the tail of another's name.
    let (_, value) =
        line.split_once("{block_size=\"").or_else(|| line.split_once(",block_size=\""))?;
    let (value, _) = value.split_once('"')?;
    value.parse().ok().filter(|tokens| *tokens > 0)
}

/// `count` of an answer to `/tokenize`.
pub(super) fn token_count(answer: &[u8]) -> Option<u64> {
    let answer: serde_json::Value = serde_json::from_slice(answer).ok()?;
    answer.get("count")?.as_u64().filter(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_size_is_read_from_its_own_label() {
        let page =
            b"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{_block_size_resolved=\
            \"True\",block_size=\"32\",effective_attention_block_size=\"64\"} 1.0\n";
        assert_eq!(block_tokens(page), Some(32));
        assert_eq!(block_tokens(b"vllm:cache_config_info{block_size=\"16\"} 1.0\n"), Some(16));
        for bad in [
            &b"vllm:cache_config_info{hash_block_size=\"16\"} 1.0\n"[..],
            b"vllm:cache_config_info{block_size=\"None\"} 1.0\n",
            b"vllm:cache_config_info{block_size=\"0\"} 1.0\n",
            b"vllm:cache_config_info{block_size=\"16",
            b"",
            b"\xff",
        ] {
            assert_eq!(block_tokens(bad), None);
        }
    }

    #[test]
    fn a_count_is_read_from_an_answer() {
        assert_eq!(token_count(br#"{"count":31,"max_model_len":8192,"tokens":[1]}"#), Some(31));
        for bad in [&b"{}"[..], b"[]", b"{\"count\":0}", b"{\"count\":-1}", b"no"] {
            assert_eq!(token_count(bad), None);
        }
    }
}
