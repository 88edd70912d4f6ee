// Keeps words out of the names of tunnels.
//
// Names are those of wit/, in camelCase; what is optional and absent is undefined.

const RULE = 'forbidden-word';

let words = [];

export const module = {
  describe() {
    return {
      name: '__NAME__',
      version: '0.1.0',
      summary: 'Keeps words out of the names of tunnels',
      rules: [{ id: RULE, summary: "A tunnel's name holds none of the forbidden words" }],
      codes: [],
      settingsSchema: JSON.stringify(SETTINGS),
    };
  },

  // Called once; what it leaves in memory is there for every decision.
  configure(settings) {
    words = JSON.parse(settings).words ?? [];
  },
};

export const inputs = {
  validate(input) {
    if (input.tag !== 'tunnel-create' && input.tag !== 'tunnel-update') return [];
    const name = (input.val.name ?? '').toLowerCase();
    const word = words.find((word) => name.includes(word));
    return word === undefined ? [] : [{ field: 'name', message: `must not hold the word ${word}`, rule: RULE }];
  },
};

// What the operator writes under `settings`: words that no tunnel's name may hold, in lower case.
const SETTINGS = {
  type: 'object',
  additionalProperties: false,
  properties: { words: { type: 'array', items: { type: 'string', minLength: 1 } } },
};
