//! Conversion of errors to HTTP replies.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use streamline::paths::ClientError;

/// An error that becomes an HTTP reply, with a status and a human-readable message.
#[derive(Debug)]
pub(crate) struct Failure {
    status: StatusCode,
    text: String,
}

impl Failure {
    /// Creates an error with a status and a human-readable message.
    #[must_use]
    pub(crate) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let body = serde_json::json!({ "error": self.text });
        (self.status, axum::Json(body)).into_response()
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let status = match &error {
            ClientError::NoDaemon(_) => StatusCode::SERVICE_UNAVAILABLE,
            ClientError::Timeout => StatusCode::GATEWAY_TIMEOUT,
            ClientError::PathEnded(_) | ClientError::Disconnected => StatusCode::NOT_FOUND,
            _ => StatusCode::BAD_REQUEST,
        };
        Self::new(status, error.to_string())
    }
}

/// Runs a blocking function in a thread of the runtime's blocking pool. Fails if the function
/// panics.
pub(crate) async fn run_blocking<T: Send + 'static>(
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    let failed = |_| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "the request failed");
    tokio::task::spawn_blocking(run).await.map_err(failed)
}
