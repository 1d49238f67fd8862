//! placeholder
use super::{BodyError, call::Call};
/// placeholder
pub fn read_call(_kind: &[u8], _body: &[u8]) -> Result<Call, BodyError> {
    Ok(Call::default())
}
