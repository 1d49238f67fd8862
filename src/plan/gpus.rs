//! GPUs by name: what their data sheets say, and what they show to an engine.

/// A GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// What `--gpu` takes.
    pub name: &'static str,
    /// Memory as it is sold, in GB of 1e9 bytes.
    pub sold_gb: f64,
    /// Memory that the driver lets an engine see, in bytes. It is more than what is sold: `80 GB`
    /// are 80 GiB less what the driver keeps.
    pub visible_bytes: f64,
    /// Memory bandwidth in bytes/s.
    pub memory_bytes_s: f64,
    /// Dense FLOP/s with 16-bit operands.
    pub flops_16: f64,
    /// Dense FLOP/s with 8-bit floating point; that of 16 bits where the GPU has no such units.
    pub flops_8: f64,
    /// To another GPU of the node, one direction, in bytes/s (NVLink; PCIe where there is none).
    pub link_bytes_s: f64,
    /// Sequences that vLLM's API server runs at once on it unless told otherwise (`max_num_seqs`).
    pub sequences_default: u64,
    /// Tokens of a step likewise (`max_num_batched_tokens`).
    pub step_tokens_default: u64,
}

const MIB: f64 = 1_048_576.0;
/// What the driver keeps of an H100: 81,559 MiB by nvidia-smi, 79.18 GiB seen by vLLM
/// (llm-d-benchmark, `empirical-vllm-memory-results.md`). Taken to be the same of the others.
const DRIVER_BYTES: f64 = (81_559.0 - 79.18 * 1024.0) * MIB;

/// All of them: data sheets of NVIDIA for bandwidth and FLOP/s (without sparsity), nvidia-smi for
/// memory (81,920, 81,559, 143,771 and 46,068 MiB).
pub const GPUS: [Gpu; 4] = [
    Gpu {
        name: "a100-80g",
        sold_gb: 80.0,
        visible_bytes: 81_920.0 * MIB - DRIVER_BYTES,
        memory_bytes_s: 2.039e12,
        flops_16: 312e12,
        flops_8: 312e12,
        link_bytes_s: 300e9,
        sequences_default: 256,
        step_tokens_default: 2048,
    },
    Gpu {
        name: "h100-80g",
        sold_gb: 80.0,
        visible_bytes: 81_559.0 * MIB - DRIVER_BYTES,
        memory_bytes_s: 3.35e12,
        flops_16: 989e12,
        flops_8: 1978e12,
        link_bytes_s: 450e9,
        sequences_default: 1024,
        step_tokens_default: 8192,
    },
    Gpu {
        name: "h200-141g",
        sold_gb: 141.0,
        visible_bytes: 143_771.0 * MIB - DRIVER_BYTES,
        memory_bytes_s: 4.8e12,
        flops_16: 989e12,
        flops_8: 1978e12,
        link_bytes_s: 450e9,
        sequences_default: 1024,
        step_tokens_default: 8192,
    },
    Gpu {
        name: "l40s-48g",
        sold_gb: 48.0,
        visible_bytes: 46_068.0 * MIB - DRIVER_BYTES,
        memory_bytes_s: 0.864e12,
        flops_16: 362.05e12,
        flops_8: 733e12,
        link_bytes_s: 32e9,
        sequences_default: 256,
        step_tokens_default: 2048,
    },
];

impl Gpu {
    /// The GPU of a name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<&'static Gpu> {
        GPUS.iter().find(|gpu| gpu.name == name)
    }
}
