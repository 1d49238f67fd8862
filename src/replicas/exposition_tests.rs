//! Pages of a real vLLM, and of engines that lie.

use super::*;

const ONE: &[u8] = include_bytes!("../../tests/data/metrics/vllm-0.32.txt");
const TWO_RANKS: &[u8] = include_bytes!("../../tests/data/metrics/vllm-0.32-dp2.txt");
const LORA: &[u8] = include_bytes!("../../tests/data/metrics/vllm-0.32-lora.txt");

fn gauges(running: &str, waiting: &str, usage: &str) -> Told {
    let page = format!(
        "vllm:num_requests_running{{engine=\"0\",model_name=\"m\"}} {running}\n\
         vllm:num_requests_waiting{{engine=\"0\",model_name=\"m\"}} {waiting}\n\
         vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"m\"}} {usage}\n"
    );
    read(page.as_bytes())
}

#[test]
fn a_recorded_page_is_read() {
    let told = read(ONE);
    assert_eq!(told.server, Some(Load::default()));
    assert_eq!((told.ranks, told.odd), (1, 0));
    assert_eq!((told.block_tokens, told.blocks), (Some(32), Some(512)));
    assert_eq!(told.prefix_caching, Some(true));
    assert_eq!(told.hash_algorithm.as_deref(), Some("sha256"));
    assert_eq!(told.sleeping, Some(false));
    assert_eq!((told.prefix_queries, told.prefix_hits), (Some(2300), Some(768)));
    assert_eq!(told.preemptions, Some(0));
    assert_eq!(told.started_s, Some(1_796_004_221.06));
    assert_eq!(read(LORA).adapter_slots, Some(2));
}

#[test]
fn ranks_are_told_apart_and_share_the_blocks() {
    let told = read(TWO_RANKS);
    assert_eq!((told.ranks, told.loads.len()), (2, 2));
    assert_eq!(told.blocks, Some(512), "1,024 on each line are those of both");
    assert_eq!(told.prefix_hits, Some(704));
    // One rank behind an address of its own keeps its number and is no lane.
    let alone = gauges("1", "2", "0.5");
    let page = "vllm:num_requests_running{engine=\"3\"} 1\nvllm:num_requests_waiting{engine=\"3\"}\
                2\nvllm:kv_cache_usage_perc{engine=\"3\"} 0.5\n";
    assert_eq!(read(page.replace("}2", "} 2").as_bytes()).server, alone.server);
    assert_eq!(read(page.as_bytes()).ranks, 1);
}

#[test]
fn loads_are_read_and_summed() {
    let told = gauges("3.0", "2", "0.25");
    let load = Load { running: 3, waiting: 2, deferred: 0, kv_usage: 0.25 };
    assert_eq!((told.server, told.odd), (Some(load), 0));
    let page = "vllm:num_requests_running{engine=\"0\"} 3\n\
        vllm:num_requests_running{engine=\"1\"} 1\n\
        vllm:num_requests_waiting{engine=\"0\"} 4\nvllm:num_requests_waiting{engine=\"1\"} 0\n\
        vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"deferred\"} 3\n\
        vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"capacity\"} 1\n\
        vllm:gpu_cache_usage_perc{engine=\"0\"} 0.5\nvllm:gpu_cache_usage_perc{engine=\"1\"} 0.1\n";
    let told = read(page.as_bytes());
    let all = Load { running: 4, waiting: 4, deferred: 3, kv_usage: 0.3 };
    assert_eq!((told.server, told.loads.len()), (Some(all), 2));
}

#[test]
fn impossible_values_are_left_out_and_counted() {
    for (running, waiting, usage) in [
        ("NaN", "0", "0"),
        ("-3", "0", "0"),
        ("1e18", "0", "0"),
        ("0", "+Inf", "0"),
        ("0", "-0.5", "0"),
        ("0", "0", "NaN"),
        ("0", "0", "1.5"),
        ("0", "0", "-1"),
    ] {
        let told = gauges(running, waiting, usage);
        assert_eq!((told.server, told.odd), (None, 1), "{running} {waiting} {usage}");
    }
    assert_eq!(gauges("1", "1", "1.004").server.map(|l| l.kv_usage), Some(1.0), "rounding");
}

#[test]
fn a_load_with_a_part_missing_is_none() {
    for page in [
        &b"vllm:num_requests_running{engine=\"0\"} 1\n"[..],
        b"vllm:num_requests_running 1\nvllm:num_requests_waiting 1\n",
        b"",
        b"{\"detail\":\"Not Found\"}",
        b"\xff\xfe\nvllm:num_requests_running{engine=\"0\",x=\"\xff\"} 1\n",
    ] {
        assert_eq!(read(page).server, None);
    }
}

#[test]
fn broken_lines_are_skipped() {
    let page = b"vllm:num_requests_running{engine=\"0\n\
        vllm:num_requests_running{engine=\"0\",a=\"}\\\"\"} 1\n\
        vllm:num_requests_running_created{engine=\"0\"} 7\n\
        vllm:num_requests_waiting{engine=\"zero\"} 5\n\
        vllm:num_requests_waiting{engine=\"0\"} 2 1796004221060\n\
        vllm:num_requests_waiting{engine=\"0\"}\n\
        vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\r\n\
        vllm:cache_config_info{hash_block_size=\"8\",block_size=\"None\",num_gpu_blocks=\"0\"} 1\n\
        process_start_time_seconds NaN\n";
    let told = read(page);
    let load = Load { running: 1, waiting: 2, deferred: 0, kv_usage: 0.5 };
    assert_eq!(told.server, Some(load));
    assert_eq!((told.block_tokens, told.blocks, told.started_s), (None, None, None));
}

#[test]
fn an_endless_list_of_engines_is_one_server() {
    let page: String =
        (0..5000).map(|i| format!("vllm:num_requests_running{{engine=\"{i}\"}} 1\n")).collect();
    let told = read(page.as_bytes());
    assert!(told.server.is_none() && told.loads.is_empty());
}
