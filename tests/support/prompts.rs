//! Seeded prompts of the kinds that traffic is made of: many languages, code, JSON, tool schemas,
//! emoji. Words are joined at random, so that no two prompts are alike.

use std::path::Path;

use fastrand::Rng;

/// Common words of some languages; those without spaces between words end with a mark.
const LANGUAGES: [(&str, &str); 15] = [
    (
        " ",
        "the of and to in that is was for on are with as they at be this have from or one had by \
      word but not what all were we when your can said there use an each which she do how their if",
    ),
    (
        " ",
        "weather answer question because through between example different important government \
      information development understand following possible national university international \
      community experience management something everything performance throughput latency",
    ),
    (
        " ",
        "der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es \
      an werden aus er hat dass sie nach wird bei einer um am sind noch wie einem über Straße ",
    ),
    (
        " ",
        "le de un être et à il avoir ne je son que se qui ce dans en du elle au pour pas vous par \
      sur faire plus dire me on mon lui nous comme mais pouvoir avec tout y aller voir aujourd'hui",
    ),
    (
        " ",
        "el la que y en los se del las un por con una su para es al lo como más pero sus ya o este \
      sí porque esta entre cuando muy sin sobre también me hasta hay donde quien niño corazón",
    ),
    (
        " ",
        "и в не на я быть он с что а по это она этот к но они мы весь который из у то за свой ты \
      от так о для же все год мочь человек такой один другой говорить только сказать время погода",
    ),
    (
        " ",
        "και να το είναι η του με που για την από στο θα δεν τα της ένα αυτό μου σου κόσμος ημέρα",
    ),
    (" ", "של את על לא זה עם הוא היא אני כל גם או אם יש היה שלום עולם מזג אוויר שאלה תשובה"),
    (" ", "في من على إلى أن هذا التي الذي كان عن مع هو ما لا بعد كل يوم قال مدينة طقس سؤال جواب"),
    (" ", "है के में की और का से को पर यह एक नहीं हैं था कि लिए करने दुनिया मौसम प्रश्न उत्तर शहर"),
    (
        " ",
        "và của là có trong được cho không với một những người này các đã để khi thời tiết hôm nay",
    ),
    (" ", "ve bir bu için ile çok da olarak daha gibi kadar sonra en var ne değil şehir hava ğüşı"),
    (
        "",
        "今天 天气 很好 我们 城市 问题 回答 可以 因为 但是 所以 ， 。 、 世界 时间 国家 发展 ！ ？ 人工智能 模型",
    ),
    (
        "",
        "今日 は とても です 天気 の が を に ます 明日 雨 でしょう 、 。 カタカナ コンピューター 東京 質問 答え ください",
    ),
    (
        " ",
        "오늘 날씨가 좋습니다 도시의 질문에 대한 답변을 하세요 그리고 하지만 사람들은 시간이 없습니다",
    ),
];
const THAI: &str = "สวัสดี ชาวโลก วันนี้ อากาศ ดี มาก คำถาม และ คำตอบ ของ เมือง";
const EMOJI: [&str; 14] =
    ["👍", "👍🏽", "😀", "🎉", "👨‍👩‍👧‍👦", "🇫🇷", "❤️", "🌦️", "✅", "→", "🤔", "🚀", "•", "…"];
const ENDS: [&str; 12] =
    [". ", ", ", "; ", ": ", "? ", "! ", ".\n", ".\n\n", " - ", " (", ") ", "\n- "];

/// A model's way to mark who speaks.
#[derive(Clone, Copy)]
pub(crate) struct Marks {
    /// Before a turn; `ROLE` stands for who speaks.
    pub(crate) open: &'static str,
    pub(crate) close: &'static str,
}

/// The generator.
pub(crate) struct Prompts {
    pub(crate) random: Rng,
    sources: Vec<String>,
    marks: Marks,
}

impl Prompts {
    /// `sources`: files of code to quote from.
    pub(crate) fn new(seed: u64, marks: Marks) -> Prompts {
        let mut sources = Vec::new();
        read_all(Path::new("src"), &mut sources);
        read_all(Path::new("tests"), &mut sources);
        assert!(sources.len() > 50, "there is code to quote");
        Prompts { random: Rng::with_seed(seed), sources, marks }
    }

    /// A chat of a system prompt and some turns, of about `bytes`.
    pub(crate) fn chat(&mut self, bytes: usize) -> String {
        let mut chat = self.turn("system", bytes / 4);
        while chat.len() < bytes {
            let part = bytes / 8 + self.random.usize(0..bytes / 4);
            let role = if self.random.bool() { "user" } else { "assistant" };
            chat.push_str(&self.turn(role, part));
        }
        chat + &self.marks.open.replace("ROLE", "assistant")
    }

    /// One turn of about `bytes`.
    pub(crate) fn turn(&mut self, role: &str, bytes: usize) -> String {
        let mut turn = self.marks.open.replace("ROLE", role);
        let start = turn.len();
        while turn.len() < start + bytes {
            let part = match self.random.u32(0..20) {
                0..=9 => self.prose(),
                10..=13 => self.code(),
                14..=15 => self.json(2),
                16 => self.schema(),
                17 => self.random.choice(EMOJI).unwrap_or_default().repeat(self.random.usize(1..4)),
                18 => THAI.split(' ').filter(|_| self.random.bool()).collect(),
                _ => format!("{}", self.random.f64() * 1e6),
            };
            turn.push_str(&part);
            turn.push_str(self.random.choice([" ", "\n", "\n\n", "  ", ""]).unwrap_or_default());
        }
        turn + self.marks.close
    }

    fn prose(&mut self) -> String {
        // Half of it English, as traffic is.
        let pick =
            if self.random.bool() { self.random.usize(0..2) } else { self.random.usize(2..15) };
        let (space, words) = LANGUAGES[pick];
        let words: Vec<&str> = words.split_whitespace().collect();
        let mut text = String::new();
        for _ in 0..self.random.usize(5..60) {
            let word = self.random.choice(&words).copied().unwrap_or_default();
            match self.random.u32(0..24) {
                0 => text.push_str(&word.to_uppercase()),
                1 => text.extend([word, "'s"]),
                2 => text.push_str(&self.random.u32(0..3000).to_string()),
                3 => text.push_str(&self.name()),
                _ => text.push_str(word),
            }
            text.push_str(match self.random.u32(0..8) {
                0 => self.random.choice(ENDS).unwrap_or_default(),
                _ => space,
            });
        }
        text
    }

    /// A word that nobody has used before.
    fn name(&mut self) -> String {
        let parts =
            ["ex", "pe", "di", "tor", "An", "lu", "ming", "ski", "qua", "zh", "ö", "der", "ib"];
        (0..self.random.usize(2..5)).filter_map(|_| self.random.choice(parts)).collect()
    }

    fn code(&mut self) -> String {
        let source = &self.sources[self.random.usize(0..self.sources.len())];
        let lines: Vec<&str> = source.lines().collect();
        let start = self.random.usize(0..lines.len());
        let lines = &lines[start..lines.len().min(start + self.random.usize(3..20))];
        format!("```\n{}\n```", lines.join("\n"))
    }

    fn json(&mut self, depth: usize) -> String {
        let fields: Vec<String> = (0..self.random.usize(1..6))
            .map(|_| {
                let value = match self.random.u32(0..6) {
                    0 if depth > 0 => self.json(depth - 1),
                    1 => self.random.u32(..).to_string(),
                    2 => "[1, 2.5, null, true]".to_owned(),
                    _ => format!("{:?}", self.name()),
                };
                format!("\"{}\": {value}", self.name())
            })
            .collect();
        let compact = self.random.bool();
        let text = format!("{{{}}}", fields.join(if compact { "," } else { ", " }));
        if compact { text.replace(": ", ":") } else { text }
    }

    fn schema(&mut self) -> String {
        let (name, field) = (self.name(), self.name());
        format!(
            "{{\"type\": \"function\", \"function\": {{\"name\": \"{name}\", \"description\": \
             \"{}\", \"parameters\": {{\"type\": \"object\", \"properties\": {{\"{field}\": \
             {{\"type\": \"string\"}}}}, \"required\": [\"{field}\"]}}}}}}\n",
            self.prose().replace(['"', '\n'], " ")
        )
    }
}

fn read_all(folder: &Path, sources: &mut Vec<String>) {
    let mut entries: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            read_all(&path, sources);
        } else if let Ok(text) = std::fs::read_to_string(&path)
            && text.lines().count() > 30
        {
            sources.push(text);
        }
    }
}
