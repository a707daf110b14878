//! What text must match: grammars compiled for a vocabulary, and the state after some tokens.

use crate::ffi::{guard, last_panic, slice, slice_mut, text, BridgeError, Ids, Result, Status, OK};
use crate::forced;
use crate::kind::{Kind, Source};
use crate::limits::{bug, check_lexer, check_text, gave_up, refusal};
use crate::masks::{FamilyMasks, GrammarMasks, MaskOf};
use crate::prune::{filled, pruned};
use crate::schema::grammar_of;
use crate::vocabulary::{DnVocabulary, Vocabulary};
use crate::watch::LONGEST;
use llguidance::api::{GrammarInit, StopReason};
use llguidance::earley::{BiasComputer, ParserRecognizer};
use llguidance::TokenParser;
use std::borrow::Cow;
use std::ffi::{c_char, c_int};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;
use toktrie::{SimpleVob, TokTrie, TokenId};

/// llguidance goes down rules and references by recursion.
const STACK: usize = 256 << 20;

/// Of a call that finds the text that must come next: most take less than 0.1 ms. Where a terminal
/// takes all of what should follow it there is no end to that text; a long grammar may have a long
/// one.
const FORCING: Duration = Duration::from_millis(20);
const FORCING_PER_BYTE: Duration = Duration::from_micros(20);

const ENDLESS: &str =
    "no end of what must come next: a terminal takes all of what should follow it";

#[derive(Debug)]
struct Endless;

impl std::fmt::Display for Endless {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(ENDLESS)
    }
}

impl std::error::Error for Endless {}

/// Of a grammar that names tokens: the parser at the start, and the tokens since. llguidance counts
/// such a token by the bytes of its text, or by those of its number where it was forced, and takes
/// back the former in both cases (1.9.1). So here rewinding begins again.
#[derive(Clone)]
struct Start {
    parser: TokenParser,
    tokens: Vec<TokenId>,
}

/// `dn_matcher`
pub struct DnMatcher {
    parser: TokenParser,
    masks: Arc<FamilyMasks>, // those of the parser's lexer
    vocabulary: Arc<Vocabulary>,
    ended: bool, // by an end token, which the parser does not see
    start: Option<Start>,
    failed: Option<Cow<'static, str>>,
    forcing: Duration,
}

impl DnMatcher {
    pub fn open(vocabulary: &Arc<Vocabulary>, kind: Kind, text: &str) -> Result<Self> {
        let matcher = check_text(text)
            .and_then(|()| {
                on_deep_stack(|| DnMatcher::compile(vocabulary, kind.parse(text)?, text.len()))
            })
            .map(|matcher| match kind {
                Kind::Lark if text.contains('<') => matcher.with_start(),
                _ => matcher,
            });
        let name = kind.name();
        matcher.map_err(|error| BridgeError(format!("{name}: {}", refusal(&error.0))))
    }

    fn compile(vocabulary: &Arc<Vocabulary>, source: Source, bytes: usize) -> Result<Self> {
        let factory = &vocabulary.factory;
        let limits = factory.limits();
        let (grammar, lexer) = match source {
            Source::Schema(schema, style) => grammar_of(&schema, &style)?,
            Source::Grammar(grammar, schemas) => {
                let (grammar, lexer) =
                    llguidance::panic_utils::catch_unwind(AssertUnwindSafe(|| {
                        GrammarInit::Serialized(grammar)
                            .to_internal(Some(factory.tok_env().clone()), limits.clone())
                    }))?;
                match schemas.is_empty() {
                    true => (grammar, lexer),
                    false => filled(&grammar, lexer, &schemas, limits)?,
                }
            }
        };
        let empty = check_lexer(&lexer, limits)?;
        let grammar = pruned(grammar, &lexer, &empty, limits)?;
        let parser =
            factory.create_parser_from_init_default(GrammarInit::Internal(grammar, lexer))?;
        let vocabulary = vocabulary.clone();
        let masks = Arc::new(GrammarMasks::new(&vocabulary, &parser));
        let masks = Arc::new(FamilyMasks::new(masks));
        let forcing = FORCING + FORCING_PER_BYTE * bytes as u32;
        let (start, failed) = (None, None);
        let mut matcher =
            DnMatcher { parser, masks, vocabulary, ended: false, start, failed, forcing };
        matcher.check_attributes()?;
        matcher.parser.start_without_prompt();
        matcher.run(|parser| parser.check_stop())?;
        let mut first = vec![0; matcher.vocabulary.size.div_ceil(32)];
        matcher.mask(&mut first)?;
        if !matcher.is_accepting()? && first.iter().all(|&word| word == 0) {
            return Err(BridgeError("no text of this vocabulary's tokens matches it".into()));
        }
        Ok(matcher)
    }

    fn with_start(mut self) -> Self {
        self.start = Some(Start { parser: self.parser.clone(), tokens: Vec::new() });
        self
    }

    fn check_attributes(&self) -> Result<()> {
        let spec = self.parser.parser.grammar().lexer_spec();
        if !spec.can_rollback() || spec.has_temperature {
            let got = "got max_tokens=, temperature=, stop= or (?P<stop>...)";
            return Err(format!("{got}, expected none: tokens could not be taken back").into());
        }
        let eos = &self.vocabulary.eos;
        let all = 0..self.vocabulary.size as TokenId;
        for &end in eos {
            for lexeme in spec.lexemes.iter().filter(|lexeme| lexeme.contains_token(end)) {
                if !all.clone().any(|id| lexeme.contains_token(id) && !eos.contains(&id)) {
                    return Err(format!(
                        "got the end token {end} in it, expected only what comes before the end"
                    )
                    .into());
                }
            }
        }
        Ok(())
    }

    /// Runs what may work long, with a limit of its own. Once it failed, by a limit or by a panic,
    /// the parser's state means nothing any more.
    fn run<T>(&mut self, body: impl FnOnce(&mut TokenParser) -> anyhow::Result<T>) -> Result<T> {
        if let Some(reason) = &self.failed {
            return Err(BridgeError(reason.to_string()));
        }
        self.failed = Some(Cow::Borrowed("an earlier call of this matcher panicked"));
        let env = self.parser.token_env.clone();
        let handle = self.parser.enable_cancellation();
        let vocabulary = self.vocabulary.clone();
        let watched = vocabulary.watch.call(handle.clone(), LONGEST);
        let done = catch_unwind(AssertUnwindSafe(|| {
            self.parser.parser.compute_bias(&Refuel(env.tok_trie()), b"-");
            let result = body(&mut self.parser);
            (result, self.parser.parser.get_error())
        }));
        drop(watched);
        let (result, error) = done.map_err(|_| bug(&last_panic()))?;
        let error = match error {
            _ if result.as_ref().is_err_and(|error| error.is::<Endless>()) => Some(ENDLESS.into()),
            _ if handle.is_cancelled() => Some(format!("more than {LONGEST:?} in one call")),
            Some(error) => Some(error.message()),
            None => result.as_ref().err().map(ToString::to_string),
        };
        let error = error.map(|error| gave_up(&error));
        self.failed = error.clone().map(Cow::Owned);
        match error {
            Some(error) => Err(BridgeError(error)),
            None => Ok(result?),
        }
    }

    /// Runs what looks at the text that must come next, and finds that first.
    fn run_forced<T>(
        &mut self,
        body: impl FnOnce(&mut TokenParser) -> anyhow::Result<T>,
    ) -> Result<T> {
        let is_forced = self.parser.token_env.tokenize_is_canonical()
            && !self.parser.parser.grammar().lexer_spec().no_forcing;
        let (vocabulary, limit) = (self.vocabulary.clone(), self.forcing);
        self.run(|parser| {
            if is_forced {
                let handle = parser.enable_cancellation();
                let _watched = vocabulary.watch.call(handle.clone(), limit);
                parser.parser.force_bytes();
                if handle.is_cancelled() {
                    return Err(Endless.into());
                }
            }
            body(parser)
        })
    }

    #[cfg(test)]
    pub fn shared_lexer_is_spent(&self) -> bool {
        self.masks.shared_lexer_is_spent()
    }

    fn is_stopped(&self) -> bool {
        self.ended || self.parser.stopped()
    }

    pub fn is_accepting(&mut self) -> Result<bool> {
        Ok(self.ended || self.run(|parser| Ok(parser.is_accepting()))?)
    }

    pub fn is_complete(&mut self) -> Result<bool> {
        Ok(self.is_accepting()? && self.is_stopped())
    }

    /// The tokens in front that may come next, the last of them perhaps an end token.
    fn admitted<'a>(&mut self, tokens: &'a [i32]) -> Result<&'a [i32]> {
        let ids: Vec<TokenId> = tokens
            .iter()
            .map_while(|&token| TokenId::try_from(token).ok())
            .take_while(|&id| (id as usize) < self.vocabulary.size)
            .collect();
        let is_end = ids.first().is_some_and(|id| self.vocabulary.eos.contains(id));
        let size = if self.ended {
            0
        } else if self.parser.stopped() {
            usize::from(is_end && self.is_accepting()?)
        } else {
            self.run(|parser| parser.validate_tokens_raw(&ids))?
        };
        Ok(&tokens[..size])
    }

    pub fn validate(&mut self, tokens: &[i32]) -> Result<usize> {
        Ok(self.admitted(tokens)?.len())
    }

    pub fn accept(&mut self, tokens: &[i32]) -> Result<usize> {
        let admitted = self.admitted(tokens)?;
        let ids: Vec<TokenId> = admitted.iter().map(|&token| token as TokenId).collect();
        let ends = ids.last().is_some_and(|id| self.vocabulary.eos.contains(id));
        let content = &ids[..ids.len() - usize::from(ends)];
        if !content.is_empty() {
            self.run(|parser| {
                for &id in content {
                    parser.consume_token(id)?;
                }
                parser.check_stop()
            })?;
            if let Some(start) = &mut self.start {
                start.tokens.extend_from_slice(content);
            }
        }
        self.ended |= ends;
        Ok(ids.len())
    }

    pub fn rewind(&mut self, tokens: usize) -> Result<()> {
        let accepted = self.parser.num_tokens() + usize::from(self.ended);
        if tokens > accepted {
            return Err(format!("rewind: got {tokens} tokens, expected 0 to {accepted}").into());
        }
        let content = tokens - usize::from(self.ended && tokens > 0);
        if let Some(start) = self.start.as_mut().filter(|_| content > 0) {
            start.tokens.truncate(start.tokens.len() - content);
            self.replay()?;
        } else {
            self.run(|parser| {
                parser.rollback(content)?;
                // The parser keeps its last mask by the number of rows and the lexer's state, which
                // can be the same again after other tokens.
                parser.invalidate_bias_cache();
                Ok(())
            })?;
        }
        self.ended &= tokens == 0;
        Ok(())
    }

    /// From its start on.
    fn replay(&mut self) -> Result<()> {
        let Some(start) = &self.start else { return Ok(()) };
        let tokens = start.tokens.clone();
        self.parser = start.parser.clone();
        self.run(|parser| {
            tokens.iter().try_for_each(|&id| parser.consume_token(id).map(drop))?;
            parser.check_stop().map(drop)
        })
    }

    pub fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        let mask = MaskOf::new(self.masks.clone(), self.parser.parser.get_bytes());
        self.mask_by(Arc::new(mask), words)
    }

    pub fn mask_by(&mut self, computer: Arc<dyn BiasComputer>, words: &mut [u32]) -> Result<()> {
        let size = self.vocabulary.size;
        if words.len() != size.div_ceil(32) {
            let got = words.len();
            return Err(format!("mask: got {got} words, expected {}", size.div_ceil(32)).into());
        }
        let vocabulary = self.vocabulary.clone();
        let allowed = match self.is_stopped() {
            true => self.run(|_| Ok(None))?,
            false => self.run_forced(|parser| {
                parser.bias_computer = computer;
                match forced::mask(parser, &vocabulary) {
                    Err(_) if parser.stop_reason() == StopReason::NoExtensionBias => Ok(None),
                    allowed => allowed.map(Some),
                }
            })?,
        };
        let is_accepting = self.is_accepting()?;
        match allowed {
            Some(allowed) => words.copy_from_slice(&allowed.as_slice()[..words.len()]),
            None => words.fill(0),
        }
        for &end in &self.vocabulary.eos {
            let (word, bit) = (&mut words[end as usize / 32], 1 << (end % 32));
            *word = if is_accepting { *word | bit } else { *word & !bit };
        }
        Ok(())
    }

    /// Tokens that must come next. Only whole ones that no other token could take the place of.
    pub fn forced(&mut self) -> Result<Vec<i32>> {
        if self.is_stopped() {
            return self.run(|_| Ok(Vec::new()));
        }
        let ids = self.run_forced(|parser| Ok(forced::forced_tokens(parser)))?;
        let mut tokens: Vec<i32> = ids.into_iter().map(|id| id as i32).collect();
        let admitted = self.validate(&tokens)?;
        tokens.truncate(admitted);
        Ok(tokens)
    }

    /// A copy, of this one's family or apart from it.
    pub fn fork(&self, apart: bool) -> Self {
        let mut copy = DnMatcher {
            parser: self.parser.clone(),
            masks: self.masks.clone(),
            start: self.start.clone(),
            vocabulary: self.vocabulary.clone(),
            ended: self.ended,
            failed: self.failed.clone(),
            forcing: self.forcing,
        };
        if apart {
            copy.leave_family();
        }
        copy
    }

    fn leave_family(&mut self) {
        self.masks = Arc::new(self.masks.apart());
        if let Some(start) = &mut self.start {
            start.parser = start.parser.deep_clone();
            let _ = self.replay(); // where this fails the next call says so
        } else {
            self.parser = self.parser.deep_clone();
        }
    }
}

/// Computes no mask. The parser gives its lexer fuel before each mask only; this makes it do so
/// before other work too. Else that would run on what the last mask of the family left.
struct Refuel<'a>(&'a TokTrie);

impl BiasComputer for Refuel<'_> {
    fn compute_bias(&self, _: &mut ParserRecognizer<'_>, _: &[u8]) -> SimpleVob {
        #[cfg(test)]
        crate::hostile_tests::panic_if_wanted(self.0);
        SimpleVob::new()
    }

    fn trie(&self) -> &TokTrie {
        self.0
    }
}

fn on_deep_stack<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, || {
            let unwound = catch_unwind(AssertUnwindSafe(work));
            unwound.map_err(|_| last_panic())
        })?;
        match thread.join() {
            Ok(Ok(result)) => result,
            Ok(Err(what)) => Err(bug(&what)),
            Err(_) => Err(bug("the thread that compiles grammars")),
        }
    })
}

/// # Safety
/// Pointers as the header demands.
#[no_mangle]
pub unsafe extern "C" fn dn_matcher_open(
    vocabulary: *const DnVocabulary,
    kind: c_int,
    source: *const c_char,
    size: usize,
    out: *mut *mut DnMatcher,
) -> Status {
    guard(|| {
        let matcher = DnMatcher::open(&(*vocabulary).0, Kind::of(kind)?, text(source, size)?)?;
        *out = Box::into_raw(Box::new(matcher));
        Ok(OK)
    })
}

/// # Safety
/// Pointers as the header demands.
#[no_mangle]
pub unsafe extern "C" fn dn_matcher_fork(
    matcher: *const DnMatcher,
    apart: c_int,
    out: *mut *mut DnMatcher,
) -> Status {
    guard(|| {
        *out = Box::into_raw(Box::new((*matcher).fork(apart != 0)));
        Ok(OK)
    })
}

/// # Safety
/// `matcher` is null or open, and not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn dn_matcher_free(matcher: *mut DnMatcher) {
    if !matcher.is_null() {
        guard(|| {
            drop(Box::from_raw(matcher));
            Ok(OK)
        });
    }
}

/// # Safety
/// Pointers as the header demands.
#[no_mangle]
pub unsafe extern "C" fn dn_matcher_accept(
    matcher: *mut DnMatcher,
    tokens: *const i32,
    size: usize,
    accepted: *mut usize,
) -> Status {
    guard(|| {
        *accepted = (*matcher).accept(slice(tokens, size))?;
        Ok(OK)
    })
}

/// # Safety
/// Pointers as the header demands.
#[no_mangle]
pub unsafe extern "C" fn dn_matcher_rewind(matcher: *mut DnMatcher, tokens: usize) -> Status {
    guard(|| {
        (*matcher).rewind(tokens)?;
        Ok(OK)
    })
}

/// # Safety
/// Pointers as the header demands.
#[no_mangle]
pub unsafe extern "C" fn dn_matcher_mask(
    matcher: *mut DnMatcher,
    words: *mut u32,
    size: usize,
) -> Status {
    guard(|| {
        (*matcher).mask(slice_mut(words, size))?;
        Ok(OK)
    })
}

/// # Safety
/// Pointers as the header demands.
#[no_mangle]
pub unsafe extern "C" fn dn_matcher_forced(matcher: *mut DnMatcher, out: *mut Ids) -> Status {
    guard(|| {
        *out = (*matcher).forced()?.into();
        Ok(OK)
    })
}

/// # Safety
/// Pointers as the header demands.
#[no_mangle]
pub unsafe extern "C" fn dn_matcher_is_complete(matcher: *const DnMatcher) -> c_int {
    // One thread at a time uses a matcher, so that what the parser remembers may change here.
    let is_complete = guard(|| Ok(Status::from((*matcher.cast_mut()).is_complete()?)));
    c_int::from(is_complete == 1)
}

/// # Safety
/// Pointers as the header demands.
#[no_mangle]
pub unsafe extern "C" fn dn_matcher_is_accepting(matcher: *const DnMatcher) -> c_int {
    let is_accepting = guard(|| Ok(Status::from((*matcher.cast_mut()).is_accepting()?)));
    c_int::from(is_accepting == 1)
}
