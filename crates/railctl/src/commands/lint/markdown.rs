//! Manifests in Markdown: fenced blocks of YAML and JSON, and the here-documents of shell in such
//! blocks.

/// The manifests of a page. Each has empty lines before it, so that its lines have the page's
/// numbers.
pub(super) fn blocks(page: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((_, line)) = lines.next() {
        let Some(fence) = Fence::begun(line) else {
            continue;
        };
        let inside: Vec<_> = lines
            .by_ref()
            .take_while(|(_, line)| !fence.ends(line))
            .collect();
        let inside = inside
            .into_iter()
            .map(|(at, line)| (at, fence.stripped(line)));
        match fence.language.as_str() {
            "yaml" | "yml" | "json" | "jsonc" | "json5" => blocks.extend(block(inside)),
            "sh" | "shell" | "bash" | "console" | "zsh" | "" => {
                let mut inside = inside;
                while let Some((_, line)) = inside.next() {
                    if let Some(word) = word_of(line) {
                        blocks.extend(block(
                            inside
                                .by_ref()
                                .take_while(|(_, line)| line.trim_start_matches('\t') != word),
                        ));
                    } else if fence.language.is_empty() && is_manifest(line) {
                        let rest: Vec<_> = inside.by_ref().collect();
                        let first = rest.first().map_or(0, |(at, _)| at - 1);
                        blocks.extend(block([(first, line)].into_iter().chain(rest)));
                    }
                }
            }
            _ => (),
        }
    }
    blocks
}

/// A block without a language may be anything.
fn is_manifest(line: &str) -> bool {
    ["apiVersion:", "kind:", "---", "{"]
        .iter()
        .any(|begin| line.starts_with(begin))
}

fn block<'p>(mut lines: impl Iterator<Item = (usize, &'p str)>) -> Option<String> {
    let (at, first) = lines.next()?;
    let mut text = "\n".repeat(at) + first + "\n";
    lines.for_each(|(_, line)| text += &format!("{line}\n"));
    Some(text)
}

/// `EOF` of `kubectl apply -f - <<'EOF'`.
fn word_of(line: &str) -> Option<&str> {
    let after = line
        .split_once("<<")?
        .1
        .trim_start_matches('-')
        .trim_start();
    let word = after
        .split([' ', '|', '>', ';'])
        .next()?
        .trim_matches(['\'', '"', '\\']);
    word.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        .then_some(word)
}

/// The line that begins a block.
struct Fence {
    indent: usize,
    mark: char,
    count: usize,
    language: String,
}

impl Fence {
    fn begun(line: &str) -> Option<Fence> {
        let begins = line.trim_start_matches([' ', '\t', '>']);
        let mark = begins
            .chars()
            .next()
            .filter(|mark| ['`', '~'].contains(mark))?;
        let info = begins.trim_start_matches(mark);
        let count = begins.len() - info.len();
        let language = info
            .trim_start_matches(['{', '.', ' '])
            .split([' ', ',', '{', '}', ':'])
            .next()?;
        let is_fence = count >= 3 && !(mark == '`' && info.contains('`'));
        let language = language.trim().to_ascii_lowercase();
        is_fence.then(|| Fence {
            indent: line.len() - begins.len(),
            mark,
            count,
            language,
        })
    }

    fn ends(&self, line: &str) -> bool {
        let rest = line.trim_start_matches([' ', '\t', '>']);
        let after = rest.trim_start_matches(self.mark);
        rest.len() - after.len() >= self.count && after.trim().is_empty()
    }

    /// A block in a list is indented as its fence is; one of a quotation has its mark.
    fn stripped<'l>(&self, line: &'l str) -> &'l str {
        let margin = line.len() - line.trim_start_matches([' ', '\t', '>']).len();
        line.get(margin.min(self.indent)..).unwrap_or_default()
    }
}
