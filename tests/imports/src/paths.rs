//! Paths as they are written, those within macros included.

use proc_macro2::{Ident, TokenStream, TokenTree};

/// A path in the source.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) path: Vec<String>,
    pub(crate) line: usize,
}

impl Named {
    /// A path of these names.
    pub(crate) fn new(path: &[&Ident]) -> Self {
        let line = path.first().map_or(0, |first| first.span().start().line);
        Self { path: path.iter().map(ToString::to_string).collect(), line }
    }
}

/// Adds the paths among a macro's tokens to `uses`: a macro has no syntax tree.
///
/// What follows a dot, a `'` or a `$` is a field, a lifetime or a variable; `$crate` is the crate.
pub(crate) fn scan(tokens: TokenStream, uses: &mut Vec<Named>) {
    let mut path = Partial::default();
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => path.name(ident, uses),
            TokenTree::Punct(punct) => path.punct(punct.as_char(), uses),
            TokenTree::Literal(_) => path.end("", uses),
            TokenTree::Group(group) => {
                path.end("", uses);
                scan(group.stream(), uses);
            }
        }
    }
    path.end("", uses);
}

/// A path, as far as it was read.
#[derive(Default)]
struct Partial {
    names: Vec<Ident>,
    /// The punctuation that came last.
    last: String,
}

impl Partial {
    fn name(&mut self, ident: Ident, uses: &mut Vec<Named>) {
        let continues = self.last == "::" && !self.names.is_empty();
        let begins = match self.last.as_str() {
            "." | "'" | "::" => false,
            "$" => ident == "crate",
            _ => true,
        };
        if !continues {
            self.end("", uses);
        }
        if continues || begins {
            self.names.push(ident);
        }
        self.last.clear();
    }

    fn punct(&mut self, punct: char, uses: &mut Vec<Named>) {
        match (self.last.as_str(), punct) {
            ("" | ":", ':') => self.last.push(punct),
            (".", '.') => self.end("..", uses),
            _ => self.end(punct.encode_utf8(&mut [0; 4]), uses),
        }
    }

    /// Ends the path; `last` is what follows it.
    fn end(&mut self, last: &str, uses: &mut Vec<Named>) {
        let names = std::mem::take(&mut self.names);
        if !names.is_empty() {
            uses.push(Named::new(&names.iter().collect::<Vec<_>>()));
        }
        last.clone_into(&mut self.last);
    }
}
