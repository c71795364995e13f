//! What is before statements: dims, buffers, kernels.

use super::*;

impl<'a> Parser<'a> {
    /// Run-time sizes are used before the driver defines them.
    pub(super) fn defines(&mut self) {
        for w in self.tokens.windows(3) {
            if let [
                Token { tok: Tok::Word("define"), .. },
                Token { tok: Tok::Word(n) | Tok::Quoted(n), .. },
                Token { tok: Tok::Punct("="), .. },
            ] = w
                && !self.sizes.contains_key(*n)
            {
                let s = self.m.syms.fresh(SymKind::Runtime, n);
                self.sizes.insert((*n).to_owned(), s);
            }
        }
    }
    pub(super) fn module(&mut self) -> Result<()> {
        if self.eat("dims") {
            while !matches!(
                self.peek(),
                Tok::Word("let" | "custom" | "buf" | "workspace" | "kernel" | "driver")
            ) || matches!(self.second(), Tok::Punct("<="))
            {
                self.param()?;
            }
        }
        while self.eat("let") {
            let (Tok::Word(name) | Tok::Quoted(name)) = self.next() else {
                self.at -= 1;
                return self.fail("the name of a size");
            };
            self.want("=")?;
            let definition = self.dim()?;
            let s = self.m.syms.define_derived(name, definition);
            self.sizes.insert(name.to_owned(), s);
        }
        while self.eat("custom") {
            match self.next() {
                Tok::Quoted(text) => match foreign::Custom::read(text) {
                    Some(c) => self.m.customs.push(c),
                    None => return self.fail("the text of a custom operator"),
                },
                _ => return self.fail("the text of a custom operator"),
            }
        }
        loop {
            match self.next() {
                Tok::Word("buf") => self.buf()?,
                Tok::Word("workspace") => self.m.workspace = self.dim()?,
                Tok::Word("kernel") => self.kernel()?,
                Tok::Word("driver") => break,
                _ => {
                    self.at -= 1;
                    return self.fail("buf, workspace, kernel or driver");
                }
            }
        }
        self.enter();
        self.m.driver = self.stmts()?;
        if self.peek() == Tok::End { Ok(()) } else { self.fail("a statement") }
    }
    fn enter(&mut self) {
        self.vars.clear();
        self.known_vars.clear();
        self.regs.clear();
    }
    fn param(&mut self) -> Result<()> {
        let mut r = Range::default();
        if matches!(self.peek(), Tok::Num(_)) {
            r.lo = Some(self.number()?);
            self.want("<=")?;
        }
        let (Tok::Word(name) | Tok::Quoted(name)) = self.next() else {
            self.at -= 1;
            return self.fail("the name of a dimension");
        };
        if self.eat("<=") {
            r.hi = Some(self.number()?);
        }
        let s = self.m.syms.param(name);
        self.m.syms.set_range(s, r);
        self.sizes.insert(name.to_owned(), s);
        self.m.dim_params.push(s);
        Ok(())
    }
    pub(super) fn buf_named(&mut self) -> Result<Buf> {
        let n = self.word("the name of a buffer")?;
        match self.bufs.get(n) {
            Some(b) => Ok(*b),
            None => {
                self.at -= 1;
                self.fail("the name of a buffer")
            }
        }
    }
    pub(super) fn buf(&mut self) -> Result<()> {
        let name = self.word("a name")?.to_owned();
        self.want(":")?;
        let ty = self.ty()?;
        let dims = self.dims()?;
        let mut layout = Layout::RowMajor;
        if self.eat("order") {
            self.want("(")?;
            let mut order = vec![];
            while !self.eat(")") {
                order.push(self.number()?);
                self.eat(",");
            }
            layout = Layout::Permuted(order);
        }
        let b = self.m.bufs.push(BufData { name: name.clone(), ty, dims, layout, place: Place::Temp });
        let place = match self.word("a place")? {
            "input" => {
                self.m.inputs.push(b);
                Place::Input(self.number()?)
            }
            "output" => {
                self.m.outputs.push(b);
                Place::Output(self.number()?)
            }
            "const" => {
                let Tok::Hash(h) = self.peek() else { return self.fail("the hash of a constant") };
                let Some(c) = (self.consts)(h) else {
                    return self.fail("the hash of a constant that is at hand");
                };
                self.at += 1;
                Place::Const(c)
            }
            "temp" => Place::Temp,
            "growable" => Place::Growable,
            "foreign" => Place::Foreign,
            "pointer" => {
                let d = self.dim()?;
                let Some(s) = d.as_sym() else { return self.fail("the symbol of an address") };
                Place::Pointer(s)
            }
            "view" => Place::View(self.buf_named()?),
            "at" => {
                let offset = self.dim()?;
                self.want("size")?;
                let size = self.dim()?;
                let slots = &mut self.m.slots;
                Place::Arena(
                    *self
                        .slots
                        .entry((offset, size))
                        .or_insert_with(|| slots.push(SlotData { offset, size })),
                )
            }
            _ => {
                self.at -= 1;
                return self.fail("input, output, const, temp, view, pointer or at");
            }
        };
        self.m.bufs[b].place = place;
        if self.bufs.insert(name, b).is_some() {
            return self.fail("a buffer with a new name");
        }
        Ok(())
    }
    fn kernel(&mut self) -> Result<()> {
        let name = self.word("a name")?.to_owned();
        let work = if self.eat("work") { self.dim()? } else { Dim::constant(0) };
        let scheduled = self.eat("scheduled") || self.m.stage != Stage::Built;
        let narrow = self.eat("narrow");
        let Tok::Comment(text) = self.next() else {
            self.at -= 1;
            return self.fail("; and what the kernel computes");
        };
        self.enter();
        let body = self.stmts()?;
        let k = self.m.kernels.push(KernelData {
            name: name.clone(),
            origin: origin(text.trim()),
            work,
            scheduled,
            schedules: vec![],
            narrow,
            body: body.into(),
        });
        if self.kernels.insert(name, k).is_some() {
            return self.fail("a kernel with a new name");
        }
        Ok(())
    }
}
