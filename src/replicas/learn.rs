//! Reads what a replica tells of itself beside its models. Pure; runs on the control thread.

/// A text in the proportions of ordinary traffic, to learn how many bytes a token takes.
pub(super) const SAMPLE: &str = "Summarize the report below in three short bullet points for an \
    engineering audience, then list the open questions.\n\nThe new cache keeps 4,096 entries per \
    shard; a miss costs about 12.5 ms, and p99 latency fell from 310 ms to 190 ms (n = 1,204).\n\
    ```python\ndef total(items: list[dict]) -> float:\n    return sum(item[\"price\"] \
    * item[\"n\"] for item in items)\n```\n{\"user\": \"maria\", \"ids\": [17, 42], \"ok\": true}\n\
    Die Lieferung kommt am Donnerstag. \u{4eca}\u{5929}\u{5929}\u{6c14}\u{5f88}\u{597d}\u{3002}";

/// `count` of an answer to `/tokenize`.
pub(super) fn token_count(answer: &[u8]) -> Option<u64> {
    let answer: serde_json::Value = serde_json::from_slice(answer).ok()?;
    answer.get("count")?.as_u64().filter(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_read_from_an_answer() {
        assert_eq!(token_count(br#"{"count":31,"max_model_len":8192,"tokens":[1]}"#), Some(31));
        for bad in [&b"{}"[..], b"[]", b"{\"count\":0}", b"{\"count\":-1}", b"no"] {
            assert_eq!(token_count(bad), None);
        }
    }
}
