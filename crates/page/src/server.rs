//! The HTTP routes of the server.
//!
//! | route | reply |
//! |---|---|
//! | `/`, `/app.js`, … | the page, without any data; no token needed |
//! | `GET /api/live?path=NUMBER` | server-sent events: all paths, and all counters of one |
//! | `GET /api/plan?path=NUMBER` | nodes and edges of a path |
//! | `GET /api/history?path=NUMBER&edge=INDEX` | rates of the last hour |
//! | `GET /api/messages?path=NUMBER&node=NAME` | server-sent events: messages that leave a filter |
//! | `GET /api/captures` | the captures to files, with their sizes |
//! | `POST /api/check`, `complete`, `explain` | mistakes, completions, plan of a request |
//! | `POST /api/start`, `stop`, `set`, `check-edit` | start, stop, edit of a path, its mistakes |
//! | `POST /api/why` | the filters that received frames of a flow |
//! | `POST /api/capture`, `capture-stop` | start and end of a capture to a file |
//!
//! Every request needs a `Host` header that names this machine. An `Origin` header, if present,
//! must contain the origin of the page. A request for data needs the token or, over a Unix socket,
//! a connection from the same user.

use crate::access::{Token, is_own_host, is_own_origin};
use crate::actions;
use crate::assets::{ASSETS, Asset, CONTENT_SECURITY_POLICY};
use crate::captures::Captures;
use crate::commands::StreamlineProgram;
use crate::failure::{Failure, run_blocking};
use crate::listener::Listener;
use crate::live::LiveFigures;
use crate::plan::PathPlan;
use axum::Router;
use axum::extract::{Query, Request, State};
use axum::http::header::{self, HeaderName};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use futures_util::stream;
use serde::Deserialize;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;

/// The state that all routes share.
#[derive(Clone, Debug)]
pub struct Server {
    /// The figures of the paths.
    pub live: Arc<LiveFigures>,
    /// The token that each request for data must contain. `None` on a Unix socket, to which only
    /// one user can connect.
    pub token: Option<Token>,
    /// The program `streamline`, which starts paths and explains requests.
    pub program: StreamlineProgram,
    /// The captures of paths to files.
    pub captures: Arc<Captures>,
}

impl Server {
    /// Returns the routes for the files of the page and for data. Requests for data must contain
    /// the token, if there is one.
    pub fn routes(self) -> Router {
        let data = Router::new()
            .route("/live", get(send_figures))
            .route("/plan", get(send_plan))
            .route("/history", get(send_history))
            .route("/messages", get(actions::stream_messages))
            .route("/check", post(actions::check_request))
            .route("/complete", post(actions::complete_request))
            .route("/explain", post(actions::explain_request))
            .route("/start", post(actions::start_path))
            .route("/stop", post(actions::stop_path))
            .route("/set", post(actions::change_path))
            .route("/check-edit", post(actions::check_edit))
            .route("/why", post(actions::trace_flow))
            .route("/captures", get(actions::list_captures))
            .route("/capture", post(actions::start_capture))
            .route("/capture-stop", post(actions::stop_capture))
            .layer(middleware::from_fn_with_state(self.clone(), check_token));
        add_asset_routes(Router::new().nest("/api", data)).with_state(self)
    }

    /// Serves requests until the future is dropped. Fails if the listener cannot be used.
    pub async fn serve(self, listener: &Listener) -> io::Result<()> {
        let routes = self.routes();
        match listener {
            Listener::Tcp(socket) => {
                let socket = tokio::net::TcpListener::from_std(socket.try_clone()?)?;
                axum::serve(socket, routes).await
            }
            Listener::Unix(socket, ..) => {
                let socket = tokio::net::UnixListener::from_std(socket.try_clone()?)?;
                let uid = sys::process::effective_ids().0;
                axum::serve(SingleUserListener { socket, uid }, routes).await
            }
        }
    }
}

/// Returns the routes for the static files of the page. Any request for data is refused for lack of
/// a token.
pub fn static_routes() -> Router {
    add_asset_routes(Router::new().route("/api/{*rest}", any(async || refuse_token())))
}

/// Makes the server close each connection after one reply, so that each request of a browser can be
/// handed to a different process.
pub fn close_after_reply(routes: Router) -> Router {
    routes.layer(middleware::map_response(async |mut reply: Response| {
        reply.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        reply
    }))
}

/// Adds the routes for the files of the page, and the header checks for all requests.
fn add_asset_routes<S: Clone + Send + Sync + 'static>(mut routes: Router<S>) -> Router<S> {
    for asset in ASSETS {
        routes = routes.route(asset.path, get(move || async move { send_asset(*asset) }));
    }
    routes.layer(middleware::from_fn(check_headers))
}

/// A Unix socket that accepts connections only from one user and from root.
struct SingleUserListener {
    socket: tokio::net::UnixListener,
    uid: u32,
}

impl axum::serve::Listener for SingleUserListener {
    type Io = tokio::net::UnixStream;
    type Addr = ();

    async fn accept(&mut self) -> (Self::Io, ()) {
        loop {
            let (connection, _) = axum::serve::Listener::accept(&mut self.socket).await;
            let peer = connection.peer_cred().map(|peer| peer.uid());
            if peer.is_ok_and(|peer| peer == self.uid || peer == 0) {
                return (connection, ());
            }
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

fn header_text(request: &Request, name: HeaderName) -> Option<&str> {
    request.headers().get(name).map(|value| value.to_str().unwrap_or("?"))
}

/// Refuses requests from other sites, and adds security headers, such as the content security
/// policy, to replies.
async fn check_headers(request: Request, next: Next) -> Response {
    let host = header_text(&request, header::HOST);
    let origin = header_text(&request, header::ORIGIN);
    let mut reply = if !is_own_host(host) {
        Failure::new(StatusCode::MISDIRECTED_REQUEST, "this host name is not that of the page")
            .into_response()
    } else if !is_own_origin(origin, host) {
        Failure::new(StatusCode::FORBIDDEN, "another site has sent this request").into_response()
    } else {
        next.run(request).await
    };
    let fixed = [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        reply.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    reply
}

async fn check_token(State(server): State<Server>, request: Request, next: Next) -> Response {
    let given = header_text(&request, header::AUTHORIZATION);
    if server.token.as_ref().is_some_and(|token| !token.matches_header(given)) {
        return refuse_token();
    }
    next.run(request).await
}

fn refuse_token() -> Response {
    let text = "the token is missing or old: open the URL that `streamline page` prints";
    Failure::new(StatusCode::UNAUTHORIZED, text).into_response()
}

fn send_asset(asset: Asset) -> Response {
    ([(header::CONTENT_TYPE, asset.media_type)], asset.text).into_response()
}

/// The query parameters of a route: the number of a path and the index of an edge, both optional.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Selection {
    path: Option<u32>,
    edge: Option<usize>,
}

impl Selection {
    fn number(self) -> Result<u32, Failure> {
        self.path.ok_or_else(|| Failure::new(StatusCode::BAD_REQUEST, "`path` is missing"))
    }
}

/// Sends the figures as server-sent events while the connection is open.
async fn send_figures(
    State(server): State<Server>,
    Query(selected): Query<Selection>,
) -> impl IntoResponse {
    let viewer = server.live.add_viewer(selected.path);
    let events = stream::unfold(viewer, move |mut viewer| async move {
        let figures = viewer.next().await?;
        let event = Event::default().event("figures").data(figures.to_event(selected.path));
        Some((Ok::<_, Infallible>(event), viewer))
    });
    Sse::new(events).keep_alive(KeepAlive::default())
}

async fn send_plan(
    State(server): State<Server>,
    Query(selected): Query<Selection>,
) -> Result<Response, Failure> {
    let number = selected.number()?;
    let plan = run_blocking(move || PathPlan::query(&server.live, number)).await??;
    Ok(axum::Json(plan).into_response())
}

async fn send_history(
    State(server): State<Server>,
    Query(selected): Query<Selection>,
) -> Result<Response, Failure> {
    let number = selected.number()?;
    Ok(axum::Json(server.live.history(number, selected.edge)).into_response())
}
