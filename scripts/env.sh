# To be sourced: puts a Rust toolchain that scripts/install_rust.sh installed on the PATH.
if [ -d "${CARGO_HOME:-$HOME/.cargo}/bin" ]; then
  PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
  export PATH
fi
