//! The static files of the page. They are embedded in the program, so the page needs neither a
//! network nor other files at run time.

/// A file of the page.
#[derive(Clone, Copy, Debug)]
pub struct Asset {
    /// Path of the file in the page's URLs, such as `/app.js`.
    pub path: &'static str,
    /// Value of `Content-Type`.
    pub media_type: &'static str,
    /// Content of the file.
    pub text: &'static str,
}

/// The content security policy of the page: allows scripts, styles and data only from the page's
/// own server, and forbids inline scripts and embedding by other sites.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src \
     'self'; img-src 'self'; connect-src 'self'; form-action 'none'; base-uri 'none'; \
     frame-ancestors 'none'";

/// All files of the page.
pub const ASSETS: &[Asset] = &[
    html("/", include_str!("../assets/index.html")),
    style("/style.css", include_str!("../assets/style.css")),
    script("/app.js", include_str!("../assets/app.js")),
    script("/api.js", include_str!("../assets/api.js")),
    script("/composer.js", include_str!("../assets/composer.js")),
    script("/details.js", include_str!("../assets/details.js")),
    script("/captures.js", include_str!("../assets/captures.js")),
    script("/editor.js", include_str!("../assets/editor.js")),
    script("/tracer.js", include_str!("../assets/tracer.js")),
    script("/figures.js", include_str!("../assets/figures.js")),
    script("/format.js", include_str!("../assets/format.js")),
    script("/graph.js", include_str!("../assets/graph.js")),
    script("/layout.js", include_str!("../assets/layout.js")),
    script("/plot.js", include_str!("../assets/plot.js")),
    script("/uplot.js", include_str!("../assets/uplot/uPlot.iife.min.js")),
    style("/uplot.css", include_str!("../assets/uplot/uPlot.min.css")),
    Asset {
        path: "/icon.svg",
        media_type: "image/svg+xml",
        text: include_str!("../assets/icon.svg"),
    },
];

const fn html(path: &'static str, text: &'static str) -> Asset {
    Asset { path, media_type: "text/html; charset=utf-8", text }
}

const fn style(path: &'static str, text: &'static str) -> Asset {
    Asset { path, media_type: "text/css; charset=utf-8", text }
}

const fn script(path: &'static str, text: &'static str) -> Asset {
    Asset { path, media_type: "text/javascript; charset=utf-8", text }
}
