//! The sheet of `plan size`: the engine's reckoning, rules of thumb beside it, and warnings.

use super::sheet::{Cell, Sheet, Table, number, words};
use super::size::{GIB, Question, Size, THUMB_OVERHEAD, WeightType, thumb_sequences, two_digits};

/// From this share of the cache on, one request is a warning.
const SHARE_WARNED: f64 = 0.5;

/// All that `plan size` says. `sources` tell where shape and types come from.
#[must_use]
pub fn sheet(asked: &Question, shape_source: &str, weights_source: &str) -> Sheet {
    let size = asked.size();
    let mut sheet = Sheet {
        command: "plan size",
        title: format!(
            "plan size: {} on {} x {}, sequences of {} tokens",
            asked.shape.name, asked.gpus, asked.gpu.name, asked.tokens
        ),
        ..Sheet::default()
    };
    inputs(asked, shape_source, weights_source, &mut sheet);
    results(asked, &size, &mut sheet);
    sheet.tables.push(thumbs(asked, &size));
    warnings(asked, &size, &mut sheet);
    notes(asked, &size, &mut sheet);
    sheet
}

fn inputs(asked: &Question, shape_source: &str, weights_source: &str, sheet: &mut Sheet) {
    let shape = &asked.shape;
    let billions = shape.parameters.total() / 1e9;
    sheet.input(("parameters_billions", "parameters", "B"), number(billions, 3), shape_source);
    let kept = shape.attention_words();
    sheet.input(("layers", "layers", ""), number(shape.layers as f64, 0), kept);
    if shape.windowed.0 > 0 {
        let (layers, window) = shape.windowed;
        let source = format!("they keep {window} tokens");
        sheet.input(("layers_windowed", "  with a window", ""), number(layers as f64, 0), source);
    }
    sheet.input(("weights", "weights", ""), words(asked.weights.name()), weights_source);
    let kv = if asked.kv_bytes < 2.0 { "fp8" } else { "fp16" };
    sheet.input(("kv_cache", "KV cache", ""), words(kv), "--kv-cache, as the engine's dtype");
    let visible = asked.gpu.visible_bytes / GIB;
    let source = format!("of each {}, sold as {:.0} GB", asked.gpu.name, asked.gpu.sold_gb);
    sheet.input(("memory_gib", "memory seen", "GiB"), number(visible, 2), source);
    let source = "--utilization, as --gpu-memory-utilization";
    sheet.input(("utilization", "utilization", ""), number(asked.utilization, 2), source);
    let block = asked.block_tokens as f64;
    sheet.input(("block_tokens", "block", "tokens"), number(block, 0), "--block-tokens");
    let sequences = asked.sequences_max as f64;
    let source = "--sequences-max; vLLM's default on this GPU";
    sheet.input(("sequences_max", "max_num_seqs", ""), number(sequences, 0), source);
    let longest = asked.longest_tokens as f64;
    let source = "--longest; the model's context";
    sheet.input(("longest_tokens", "longest request", "tokens"), number(longest, 0), source);
}

fn results(asked: &Question, size: &Size, sheet: &mut Sheet) {
    let gib = |bytes: f64| number(bytes / GIB, 2);
    let how = format!("{:.2} GiB x {}", asked.gpu.visible_bytes / GIB, asked.utilization);
    sheet.result(("budget_gib", "budget a GPU", "GiB"), gib(size.budget_bytes), how);
    let p = &asked.shape.parameters;
    let how = format!(
        "({:.2} B x {} bytes + {:.2} B of embedding, head, norms x 2) / {} GPUs",
        (p.dense + p.experts) / 1e9,
        asked.weights.bytes(),
        (p.vocabulary + p.small) / 1e9,
        asked.gpus
    );
    sheet.result(("weights_gib", "weights", "GiB"), gib(size.weight_bytes), how);
    let how = if asked.reserve_bytes.is_some() {
        "--reserve-gib".to_owned()
    } else {
        "the larger of 38.5 bytes x max_num_seqs x vocabulary, and a full step".to_owned()
    };
    sheet.result(("activations_gib", "activations", "GiB"), gib(size.activation_bytes), how);
    let how = "CUDA context and NCCL, by vLLM's log";
    sheet.result(("outside_gib", "outside of PyTorch", "GiB"), gib(size.outside_bytes), how);
    let how = "budget - weights - activations - outside";
    sheet.result(("kv_gib", "left for KV", "GiB"), gib(size.kv_bytes), how);
    let tokens = size.block_bytes / asked.block_tokens.max(1) as f64;
    let how = format!(
        "{:.0} elements x {} layers x {} bytes",
        asked.shape.kv_elements_a_gpu(asked.gpus),
        asked.shape.layers,
        asked.kv_bytes
    );
    sheet.result(("kv_token_bytes", "KV of a token, a GPU", "bytes"), number(tokens, 0), how);
    let how = format!("left for KV / ({tokens:.0} x {} tokens)", asked.block_tokens);
    sheet.result(("blocks", "KV blocks", ""), number(size.blocks, 0), how);
    let tokens = size.blocks * asked.block_tokens as f64;
    sheet.result(("kv_tokens", "KV tokens", ""), number(tokens, 0), "blocks x block");
    let how = format!("{} tokens in whole blocks", asked.tokens);
    let blocks = number(size.sequence_blocks, 1);
    sheet.result(("sequence_blocks", "blocks of a sequence", ""), blocks, how);
    let how = format!("{:.0} / {:.1}, rounded down", size.blocks, size.sequence_blocks);
    let sequences = number(size.sequences, 0);
    sheet.result(("sequences", "sequences that fit", ""), sequences, how);
    let running = size.sequences.min(asked.sequences_max as f64);
    let how = "no more than max_num_seqs";
    sheet.result(("sequences_running", "  that run at once", ""), number(running, 0), how);
    let share = if size.longest_share.is_finite() {
        number(size.longest_share * 100.0, 1)
    } else {
        Cell::Nothing
    };
    let how = format!("{} tokens of {tokens:.0}", asked.longest_tokens);
    sheet.result(("longest_percent", "longest request takes", "%"), share, how);
}

/// Rules of thumb, in the order in which they stop being wrong.
fn thumbs(asked: &Question, size: &Size) -> Table {
    let sold = asked.sold_gb();
    let exact = asked.sequence_bytes() / 1e9;
    let weights = asked.thumb_weight_gb(asked.weights);
    let row = |name: &str, memory: f64, weights: f64, kv: f64, digits: usize| {
        let sequences = thumb_sequences(memory, weights, kv);
        vec![
            words(name),
            number(memory, 1),
            number(weights, 1),
            number(kv, digits),
            number(sequences, 0),
        ]
    };
    let rounded = two_digits(exact);
    let taken = sold * asked.utilization;
    let mut rows = Vec::new();
    // Below a hundredth of a GB a rounded sequence says nothing.
    if rounded >= 0.1 {
        rows.push(row("the blueprint's: all memory", sold, weights, rounded, 2));
        rows.push(row("what the engine takes of it", taken, weights, rounded, 2));
    }
    rows.push(row("the same, KV not rounded", taken, weights, exact, 4));
    if asked.kv_bytes < 2.0 {
        rows.push(row("all memory, KV in 16 bits", sold, weights, exact * 2.0, 4));
    }
    if asked.weights != WeightType::Bits16 {
        let plain = asked.thumb_weight_gb(WeightType::Bits16);
        rows.push(row("all memory, weights in 16 bits", sold, plain, exact, 4));
    }
    let gpus = asked.gpus as f64;
    rows.push(vec![
        words("this engine on these GPUs (results above)"),
        number(size.budget_bytes * gpus / 1e9, 1),
        number((size.weight_bytes + size.activation_bytes + size.outside_bytes) * gpus / 1e9, 1),
        number(size.sequence_blocks * size.block_bytes * gpus / 1e9, 4),
        number(size.sequences, 0),
    ]);
    let title = format!(
        "Rules of thumb, in GB of 1e9 bytes for all GPUs (weights = {} B x {} bytes x \
         {THUMB_OVERHEAD:.2})",
        asked.billions,
        asked.weights.bytes()
    );
    let columns = vec![
        ("reckoning", "reckoning"),
        ("memory_gb", "memory GB"),
        ("weights_gb", "weights GB"),
        ("kv_sequence_gb", "KV/sequence GB"),
        ("sequences", "sequences"),
    ];
    Table { key: "reckonings", title, columns, rows, bars: Some(4) }
}

fn warnings(asked: &Question, size: &Size, sheet: &mut Sheet) {
    let mut warn = |text: String| sheet.warnings.push(text);
    let tokens = size.blocks * asked.block_tokens as f64;
    let needed = match asked.gpus_needed() {
        Some(gpus) if gpus != asked.gpus => format!(" {gpus} such GPUs would do."),
        Some(_) => String::new(),
        None => " No number of such GPUs up to 32 would do.".to_owned(),
    };
    if size.kv_bytes <= 0.0 {
        warn(format!("The model does not fit: nothing is left for KV.{needed}"));
    } else if size.longest_share > 1.0 {
        warn(format!(
            "One request of {} tokens needs more than the replica's {tokens:.0}: the engine does \
             not start with such a --max-model-len, and a gateway must refuse it.{needed}",
            asked.longest_tokens
        ));
    } else if size.longest_share > SHARE_WARNED {
        warn(format!(
            "One request of {} tokens takes {:.0} % of the replica: beside it nothing much runs, \
             and with a headroom of 15 % it {}. Route by what fits, not by counts.",
            asked.longest_tokens,
            size.longest_share * 100.0,
            if size.longest_share > 0.85 { "is never admitted" } else { "only just fits" }
        ));
    }
    if size.sequences > asked.sequences_max as f64 {
        warn(format!(
            "Memory holds {:.0} sequences, but the engine runs {} (max_num_seqs).",
            size.sequences, asked.sequences_max
        ));
    }
    if asked.copies() > 1.0 {
        warn(format!(
            "Each token is kept {:.0} times over the {} GPUs ({}): dividing all memory by the KV \
             of a token is wrong by that factor. Attention by data parallelism keeps it once.",
            asked.copies(),
            asked.gpus,
            if asked.is_latent() { "every GPU has the latent" } else { "more GPUs than KV heads" }
        ));
    }
}

fn notes(asked: &Question, size: &Size, sheet: &mut Sheet) {
    let mut note = |text: String| sheet.notes.push(text);
    let lost = (1.0 - asked.utilization) * 100.0;
    note(format!(
        "All of the memory is never the cache's: the engine leaves {lost:.0} % alone \
         (--gpu-memory-utilization {}), so of the rules of thumb the second is the honest one. It \
         still counts a card by the GB on its box ({:.0}; an engine sees {:.1}), and takes 20 % of \
         the weights for activations, which depend on the vocabulary and max_num_seqs instead.",
        asked.utilization,
        asked.gpu.sold_gb,
        asked.gpu.visible_bytes / 1e9
    ));
    if asked.weights != WeightType::Bits16 && asked.shape.quantization.is_none() {
        note(
            "The weights are not quantized by the cache's type: without a quantized checkpoint or \
             --quantization the engine loads 16 bits (the row of weights in 16 bits)."
                .to_owned(),
        );
    }
    note(format!(
        "A sequence ends within a block: up to {} tokens of each are empty. The cache also holds \
         prefixes that others may reuse; what all sequences need at once leaves no room for that.",
        asked.block_tokens.saturating_sub(1)
    ));
    if size.activation_bytes > 0.0 && asked.reserve_bytes.is_none() {
        note(
            "Activations are an estimate; the engine logs the peak at start-up (give it as \
             --reserve-gib). CUDA graphs, some 0.1 to 1 GiB, come out of what it leaves alone in \
             versions that do not count them."
                .to_owned(),
        );
    }
}
