//! Compiles the .proto files with a pure-Rust compiler: no system `protoc` is needed.

use prost::Message as _;

const FILES: [&str; 7] = [
    "docket/v1/common.proto",
    "docket/v1/agents.proto",
    "docket/v1/keeper.proto",
    "docket/v1/cluster.proto",
    "docket/v1/jobs.proto",
    "docket/v1/entry.proto",
    "docket/v1/image.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let set = protox::compile(FILES, ["."])?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptor.bin"), set.encode_to_vec())?;
    let rpc = std::env::var_os("CARGO_FEATURE_RPC").is_some();
    tonic_prost_build::configure()
        .build_client(rpc)
        .build_server(rpc)
        .btree_map(".")
        .bytes(".docket.v1.LogPiece.data")
        .bytes(".docket.v1.BulkPiece.data")
        .compile_fds(set)?;
    println!("cargo:rerun-if-changed=docket");
    Ok(())
}
