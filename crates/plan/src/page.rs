//! Pages for a browser. Each is one file that loads nothing, works without a network, and shows any
//! text as text.

use rail_cni::log::printable;

const STYLE: &str = include_str!("page.css");

/// Whether a page has a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script<'a> {
    /// The browser runs none, whatever the page contains.
    None,
    /// This one, which must not contain `</script`.
    Inline(&'a str),
}

/// A page. `body` is HTML, `title` is text.
pub fn render(title: &str, style: &str, body: &str, script: Script<'_>) -> String {
    let (allowed, script) = match script {
        Script::None => ("", String::new()),
        Script::Inline(code) => (
            "script-src 'unsafe-inline'; ",
            format!("<script>\n{code}</script>\n"),
        ),
    };
    format!(
        "<!doctype html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; {allowed}style-src 'unsafe-inline'\">
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<meta name=\"color-scheme\" content=\"light dark\">
<title>{}</title>
<style>
{STYLE}{style}</style>
</head>
<body>
{body}{script}</body>
</html>
",
        escape(title)
    )
}

/// Text as HTML, for content and for values of attributes in double quotes.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A script element with JSON, which nothing in it can end.
pub fn data(id: &str, json: &str) -> String {
    let json = json.replace('<', "\\u003c");
    format!("<script type=\"application/json\" id=\"{id}\">{json}</script>\n")
}

/// A table whose cells are text. An empty cell is a dash. `class` gets the header and the text of a
/// cell; it returns the class of its style, or nothing.
pub fn table(
    headers: &[&str],
    rows: Vec<Vec<String>>,
    class: fn(&str, &str) -> &'static str,
) -> String {
    let head: String = headers
        .iter()
        .map(|header| format!("<th>{}</th>", escape(header)))
        .collect();
    let cell = |(text, header): (String, &&str)| match (text.as_str(), class(header, &text)) {
        ("", _) => "<td>-</td>".to_owned(),
        (text, "") => format!("<td>{}</td>", escape(text)),
        (text, class) => format!("<td class=\"{class}\">{}</td>", escape(text)),
    };
    let row = |cells: Vec<String>| cells.into_iter().zip(headers).map(cell).collect::<String>();
    let rows: String = rows
        .into_iter()
        .map(|cells| format!("<tr>{}</tr>\n", row(cells)))
        .collect();
    format!(
        "<div class=\"wide\"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const HOSTILE: &str = "</script><script>alert(1)</script><!--\"' onload=x &\u{1b}";

    #[test]
    fn text_stays_text() {
        assert_eq!(escape("<a href=\"'&\u{7}"), "&lt;a href=&quot;&#39;&amp;?");
        let rows = vec![vec![HOSTILE.to_owned()], vec![String::new()]];
        let body = table(&[HOSTILE], rows, |_, _| "c");
        let page = render(HOSTILE, "", &body, Script::None);
        assert!(
            !page.contains("<script") && !page.contains("<!--"),
            "{page}"
        );
        assert!(
            page.contains("<td>-</td>") && page.contains("<td class=\"c\">&lt;/script"),
            "{page}"
        );
        assert!(page.contains("content=\"default-src 'none'; style-src 'unsafe-inline'\""));
    }

    #[test]
    fn data_cannot_end_its_element() {
        let value = json!({"a": HOSTILE, "</script>": 1});
        let element = data("d", &value.to_string());
        let inner = element
            .strip_prefix("<script type=\"application/json\" id=\"d\">")
            .unwrap();
        let inner = inner.strip_suffix("</script>\n").unwrap();
        assert!(!inner.contains('<'), "{inner}");
        assert_eq!(serde_json::from_str::<Value>(inner).unwrap(), value);
    }
}
